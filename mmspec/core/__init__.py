"""The engine: draft a tree, score it once, commit a part of it. It depends on no modality and not on transformers."""
