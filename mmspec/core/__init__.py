"""The engine: draft a tree, score it once, keep a part of it. Nothing here knows a modality."""
