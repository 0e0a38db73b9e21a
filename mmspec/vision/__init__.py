"""Images out: picture tokenizers, targets whose tokens are pictures, and what judges them."""
