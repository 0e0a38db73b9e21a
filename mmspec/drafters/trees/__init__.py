"""Draft trees: static templates, planners, and searches."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
