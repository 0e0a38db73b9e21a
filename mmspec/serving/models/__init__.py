"""What an engine runs: a model of each modality, its requests, and what is made of their tokens."""
