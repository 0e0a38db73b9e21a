"""`mmspec.text.speculate`: speculative decoding within the `generate` of transformers."""
