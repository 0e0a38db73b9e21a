"""Text out: language models, encoder-decoders and speech recognisers."""
