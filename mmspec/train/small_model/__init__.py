"""Small drafter models of a target's tokenizer: made from its layers or fresh, and distilled from it."""
