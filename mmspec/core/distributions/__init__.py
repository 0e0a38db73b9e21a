"""Distributions that tokens are drawn from: categorical, Gaussian, mixture, denoising path, frame; and their residuals."""
