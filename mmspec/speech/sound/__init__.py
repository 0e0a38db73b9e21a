"""Samples, files, and a recogniser."""
