"""Trained heads on the hidden state of the target: Medusa, Hydra, MTP, CTC."""
