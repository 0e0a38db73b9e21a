"""Codecs: codes to samples, whole or piece by piece."""
