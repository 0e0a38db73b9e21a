"""Training of drafters of image models, on pictures that the target drew itself."""
