"""Synthetic targets: counts without weights or data."""
