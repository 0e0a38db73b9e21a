"""Bulk work: prompts from files, batches through one pair, results that appear whole or not at all."""
