"""Trained drafters on disk, our own and published ones."""
