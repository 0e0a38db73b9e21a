"""The engine: draft a tree, score it once, commit a part of it. It knows no modality and no transformers."""
