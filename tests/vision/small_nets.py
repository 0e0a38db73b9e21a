"""A LlamaGen of 24 codes on a grid of 5 x 5 with an EAGLE drafter and a smaller model, of random weights."""

import torch

from mmspec.drafters.features.eagle import Eagle1
from mmspec.train.small_model.images import small_llamagen
from mmspec.vision import LlamaGen, LlamaGenConfig
from mmspec.vision.families.llamagen import LlamaGenPictures


def guided_model() -> LlamaGenPictures:
    """The model of three classes, its codebook, its drafter and its smaller model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "initializer_range": 0.2}
    config = LlamaGenConfig(vocab_size=24, grid=5, classes=3, **sizes)
    net = LlamaGen(config).eval()
    drafter = Eagle1(**Eagle1.fit(config)).eval()
    codebook = torch.randn(24, 4)
    small = LlamaGenPictures(small_llamagen(net, 1).eval())
    return LlamaGenPictures(net, codebook=codebook, labels=("cat", "dog", "owl"), drafter=drafter, assistant=small)
