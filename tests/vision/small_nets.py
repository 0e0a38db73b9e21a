"""A LlamaGen of 24 codes on a grid of 5 x 5 with an EAGLE drafter, of random weights."""

import torch

from mmspec.drafters.features.eagle import Eagle1
from mmspec.vision import LlamaGen, LlamaGenConfig
from mmspec.vision.families.llamagen import LlamaGenPictures


def guided_model() -> LlamaGenPictures:
    """The model of three classes, its codebook and its drafter."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "initializer_range": 0.2}
    config = LlamaGenConfig(vocab_size=24, grid=5, classes=3, **sizes)
    net = LlamaGen(config).eval()
    drafter = Eagle1(**Eagle1.fit(config)).eval()
    return LlamaGenPictures(net, codebook=torch.randn(24, 4), labels=("cat", "dog", "owl"), drafter=drafter)
