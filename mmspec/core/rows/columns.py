"""What the parents of a draft's columns are where they are no other column."""

CONTEXT = -1
"""Parent of a node that directly follows the cached context."""
PAD = -2
"""Parent of a column that is not a node in this row."""
