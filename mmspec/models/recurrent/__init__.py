"""Recurrent and convolution states of models, committed row by row."""
