"""What the quality metrics read of generated images: features, codes, the target's own likelihoods and recognised classes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.vision.codes.tokenizer import as_tensor
from mmspec.vision.families.base import ImageModel
from mmspec.vision.quality.classifier import classify, seen_values
from mmspec.vision.quality.metrics import PictureSet

_BATCH = 50


@torch.no_grad()
def judged_pictures(
    model: ImageModel, judge: Any, prompts: Sequence[Any], sequences: Tensor, guidance: float, labels: Tensor, wanted: Tensor | None
) -> PictureSet:
    """Measure the images of a `LlamaGen` model.

    Args:
        model: the adapter that drew them.
        judge: a classifier (`mmspec.minis.images.load_judge`).
        prompts: their prompts, N of them.
        sequences: codes in writing order, LongTensor [N, T].
        guidance: the scale they were drawn with, whose distribution -log p is taken of.
        labels: LongTensor [N], the number of each one's prompt: pictures are exchanged within a prompt only.
        wanted: LongTensor [N, A], what the judge sees in pictures that show what was asked for (`mmspec.minis.images.asked_values`).

    Returns:
        The set. `hits` are pictures of which all attributes are right; without `wanted` there are none.
    """
    surprise = []
    for first in range(0, len(prompts), _BATCH):
        some, codes = prompts[first : first + _BATCH], sequences[first : first + _BATCH]
        prompt = model.encode(some, guided=True)
        states = model.model.states(prompt.embeds, torch.cat([codes, codes]), prompt.mask)
        cond, uncond = model.logits(states).chunk(2)
        log_p = (uncond + guidance * (cond - uncond)).log_softmax(-1)
        surprise.append(-log_p.gather(-1, codes[..., None])[..., 0])
    codes = model.raster.picture(sequences)
    logits, features = classify(judge, as_tensor(model.decode(codes)))
    hits = None if wanted is None else (seen_values(judge, logits) == wanted.to(logits.device)).all(1)
    return PictureSet(features, codes, torch.cat(surprise), hits, labels)
