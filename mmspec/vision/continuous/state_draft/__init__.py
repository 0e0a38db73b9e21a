"""Drafting continuous tokens with one layer that reads the target's last hidden states (EAGLE, Li et al. 2024, arXiv 2401.15077)."""
