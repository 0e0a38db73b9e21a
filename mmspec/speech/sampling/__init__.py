"""Samplers and orders of codes that only speech models have."""
