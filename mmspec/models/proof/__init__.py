"""The self-test of an architecture: its logits under drafts, batches and windows against its own uncached forwards."""
