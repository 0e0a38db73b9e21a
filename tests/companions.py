"""Drafters and witnesses for models that hear or see."""

from contextlib import contextmanager

import torch
import transformers as hf
from torch import nn

from mmspec.core.rules.token import Token
from tests.sizes import LLAMA, Case, build


def perturbed(model, by: float = 0.05):
    torch.manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * by)
    return model


def llama(**sizes):
    return build(Case(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA | {"num_hidden_layers": 1} | sizes)), ""), seed=3)


@contextmanager
def counted(*modules: nn.Module):
    """How often each of `modules` runs inside."""
    runs = [0] * len(modules)

    def counter(index):
        def count(*_):
            runs[index] += 1

        return count

    handles = [module.register_forward_hook(counter(index)) for index, module in enumerate(modules)]
    yield runs
    for handle in handles:
        handle.remove()


class Seen(Token):
    """The token rule, keeping what it judged."""

    rounds: list = []

    def __call__(self, draft, scored, noise):
        self.rounds.append((draft, scored.p))
        return super().__call__(draft, scored, noise)
