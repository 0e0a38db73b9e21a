"""Trained layers that continue the hidden states of the target: EAGLE, GLIDE, ViSpec, HiViS."""
