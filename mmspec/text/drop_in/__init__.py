"""`mmspec.text.speculate`: drafts within the `generate` of transformers."""
