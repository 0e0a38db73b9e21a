"""Drafts looked up: in the prompt, in a datastore, in n-grams, in earlier answers."""
