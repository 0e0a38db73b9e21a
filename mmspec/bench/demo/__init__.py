"""The sections of `mmspec demo`."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
