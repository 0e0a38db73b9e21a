"""Drivers of each family of transformers models."""
