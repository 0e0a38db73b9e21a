"""Beam search by speculative decoding: exact, by sampling, and the published approximate rule."""
