"""Images as continuous tokens: autoregressive and masked models, with diffusion or mixture heads."""

from mmspec.utils.renamed import old_names

__getattr__ = old_names(__name__)
