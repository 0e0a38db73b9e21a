"""Beam search by speculative decoding: exact, by sampling, and the published approximate rule."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
