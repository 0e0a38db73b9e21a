"""Speculation inside one chain of Gaussian denoising steps: several steps of a token judged in one call of its head."""
