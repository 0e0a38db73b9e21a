"""Inputs of a request: ids, pictures and clips, checked."""
