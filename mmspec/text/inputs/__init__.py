"""Inputs of a request: ids, pictures and clips, checked."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
