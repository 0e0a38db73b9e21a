"""What a decoding function for `custom_generate` shares between modalities: settings, processors, stops, transformers' own loop."""
