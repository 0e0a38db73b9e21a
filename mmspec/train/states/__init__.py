"""A target's hidden states as training data: windows of them, recordings on disk, and the memory that training on them takes."""
