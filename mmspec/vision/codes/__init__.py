"""Images as grids of codes: methods, rows, tokenizers."""
