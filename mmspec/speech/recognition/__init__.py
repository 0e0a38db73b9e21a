"""Recognition: sound files to text, with timestamps, by Whisper's own transcription loop and by models that hear within a prompt."""
