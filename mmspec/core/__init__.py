"""The engine: guess a tree, score it once, keep a part of it. Nothing here knows a modality."""
