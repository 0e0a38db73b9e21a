"""The target run short as its own drafter: early exit, skipped layers, a small cache."""
