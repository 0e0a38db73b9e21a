"""transformers models as targets: sessions, the slot cache, layouts, guidance, partial forwards."""
