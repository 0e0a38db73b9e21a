"""`mmspec.vision.speculate` and `accelerate`: image models within the `generate` of transformers and the pipelines of diffusers."""
