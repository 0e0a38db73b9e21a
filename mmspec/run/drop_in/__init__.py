"""Decoding functions for `custom_generate`: that of text, and what it shares with other modalities: settings, processors, stops."""
