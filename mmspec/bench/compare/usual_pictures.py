"""The baseline of picture methods: plain decoding of a LlamaGen with a transformers DynamicCache."""

import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessorList, TopPLogitsWarper

from mmspec.vision.families.base import ImageModel


@torch.no_grad()
def generate_by_library(model: ImageModel, prompts: list, guidance: float, seed: int, top_p: float | None = None) -> Tensor:
    """Return codes [B, T]: a transformers DynamicCache, one code a step, guidance in one doubled batch, `torch.multinomial`.

    It draws from the same distribution as `plain`, with torch's global generator. For models whose network is a `LlamaGen`.

    Args:
        model: the adapter.
        prompts: one a picture.
        guidance: the scale; at 1 no unconditional rows are run.
        seed: of torch's global generator.
        top_p: the least probability of the codes that are kept, by transformers' own warper; None for all.
    """
    torch.manual_seed(seed)
    guided = guidance != 1
    prompt, net, cache = model.encode(prompts, guided=guided), model.model, DynamicCache()
    (rows, size), embeds, seen = prompt.mask.shape, prompt.embeds, prompt.mask
    cells = torch.full((rows, size), -1)
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    mask = ((seen[:, None] & causal) | torch.eye(size, dtype=torch.bool))[:, None]
    warp = LogitsProcessorList([] if top_p is None else [TopPLogitsWarper(top_p)])
    found: list[Tensor] = []
    for place in range(model.raster.length):
        logits = net.output(net(embeds, cells, mask, cache)[0][:, -1])
        if guided:
            cond, uncond = logits.chunk(2)
            logits = uncond + guidance * (cond - uncond)
        found.append(torch.multinomial(warp(None, logits).softmax(-1), 1))  # pyright: ignore[reportArgumentType]
        both = torch.cat([found[-1], found[-1]]) if guided else found[-1]
        seen = torch.cat([seen, seen.new_ones(rows, 1)], 1)
        embeds, cells, mask = model.embed(both), torch.full((rows, 1), place), seen[:, None, None]
    return torch.cat(found, 1)
