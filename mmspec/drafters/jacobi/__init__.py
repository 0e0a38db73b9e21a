"""Drafts from the target's own last distributions: Jacobi windows and lookahead."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
