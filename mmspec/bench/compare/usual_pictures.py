"""The baseline of picture methods: plain decoding of a LlamaGen with a transformers DynamicCache."""

import torch
from torch import Tensor
from transformers import DynamicCache

from mmspec.vision.families.base import ImageModel


@torch.no_grad()
def generate_by_library(model: ImageModel, prompts: list, guidance: float, seed: int) -> Tensor:
    """Return codes [B, T]: a transformers DynamicCache, one code a step, guidance in one doubled batch, `torch.multinomial`.

    It draws from the same distribution as `plain`, with torch's global generator. For models whose network is a `LlamaGen`.
    """
    torch.manual_seed(seed)
    prompt, net, rows, cache = model.encode(prompts, guided=True), model.model, len(prompts), DynamicCache()
    size, embeds = prompt.embeds.shape[1], prompt.embeds
    seen, cells = prompt.mask, torch.full((2 * rows, size), -1)
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    mask = ((seen[:, None] & causal) | torch.eye(size, dtype=torch.bool))[:, None]
    found: list[torch.Tensor] = []
    for place in range(model.raster.length):
        cond, uncond = net.output(net(embeds, cells, mask, cache)[0][:, -1]).chunk(2)
        found.append(torch.multinomial((uncond + guidance * (cond - uncond)).softmax(-1), 1))
        both = torch.cat([found[-1], found[-1]])
        seen = torch.cat([seen, seen.new_ones(2 * rows, 1)], 1)
        embeds, cells, mask = model.embed(both), torch.full((2 * rows, 1), place), seen[:, None, None]
    return torch.cat(found, 1)
