"""Logits processors, applied once to p and q with the history of each node."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
