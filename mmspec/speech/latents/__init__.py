"""Speech models whose steps are continuous latents: Pocket TTS, VibeVoice."""
