"""Images as continuous tokens: autoregressive and masked models, with diffusion or mixture heads."""
