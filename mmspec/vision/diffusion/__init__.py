"""Diffusion chains decoded speculatively."""
