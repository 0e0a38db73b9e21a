"""Which items a user may get: masks and lists, groups with boosts, quotas and caps, and scores of given items."""
