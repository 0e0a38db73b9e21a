"""Trained heads on the hidden state of the target: Medusa, Hydra, MTP, CTC."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
