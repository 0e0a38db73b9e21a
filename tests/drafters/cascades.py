"""Three models, each smaller than the one before: as tables, and as perturbed copies of one transformer."""

import copy

import torch
from transformers import LlamaForCausalLM

from mmspec.core.processors.pipeline import pipeline
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Shape
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from tests.oracles.tables import TableTarget, pair


def three(size: int, length: int, seed: int) -> tuple[TableTarget, TableTarget, TableTarget]:
    """A target, a middle model that knows half of it, and an inner one that knows half of the middle."""
    target, middle = pair(size, length, seed, zeros=0.0)
    other = pair(size, length, seed + 10, zeros=0.0)[1]
    return target, middle, TableTarget(other.table.blend(middle.table, 0.5))


def perturbed(model: LlamaForCausalLM, by: float, seed: int = 7) -> LlamaForCausalLM:
    """`model` with every weight off by about a share `by`: a drafter that is often right."""
    made, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    for parameter in made.parameters():
        parameter.data.mul_(1 + by * torch.randn(parameter.shape, generator=generator))
    return made


def hf(model: LlamaForCausalLM, temperature: float | None = None) -> HFTarget:
    return HFTarget(model, family_of(model), pipeline(temperature=temperature))


def drafting(model: LlamaForCausalLM, shape: Shape, temperature: float | None = None) -> ModelDrafter:
    return ModelDrafter(hf(model, temperature), shape)
