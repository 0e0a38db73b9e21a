"""Drafts from the target's own last distributions: Jacobi windows and lookahead."""
