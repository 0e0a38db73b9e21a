"""What a drafter reads of a prompt with pictures or sound."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
