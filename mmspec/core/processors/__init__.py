"""Logits processors, applied once to p and q with the history of each node."""
