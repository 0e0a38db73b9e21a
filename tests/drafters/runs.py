"""Short runs of one drafter over a model, and the prompts and models they share."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.core.control import Control, Fixed
from mmspec.core.decode import Generation, generate
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.protocols import Drafter
from mmspec.core.records import Step, validate
from mmspec.core.rules.base import Accept
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.none import NoDraft
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget

NEW = 16

Inputs = dict[str, torch.Tensor]


def prompt_of(*texts: Sequence[int]) -> Inputs:
    """Texts, left-padded."""
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + list(text) for text in texts])
    mask = torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": mask}


def random_prompt(*lengths: int, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return prompt_of(*(torch.randint(3, 50, (length,), generator=generator).tolist() for length in lengths))


def run(
    model: LlamaForCausalLM,
    drafter: Drafter,
    inputs: Inputs,
    rule: Accept | None = None,
    *,
    new: int = NEW,
    length: int = 5,
    seed: int = 0,
    temperature: float | None = None,
    ends: Sequence[int] = (),
    control: Control | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Generation:
    """A generation whose every draft is checked against the records' invariants. Greedy unless a rule is given."""
    target = HFTarget(model, DecoderOnly.of(model), pipeline(temperature=temperature))
    rows = len(inputs["input_ids"])
    stopping, noise = DefaultStopping(rows, new, ends), Noise.from_seed(seed, rows)

    def check(step: Step) -> None:
        validate(step.draft)
        on_step(step)

    return generate(
        target, drafter, rule or Greedy(), inputs, stopping=stopping, noise=noise, control=control or Fixed(length), on_step=check
    )


def greedy(model: LlamaForCausalLM, inputs: Inputs, new: int = NEW) -> list[list[int]]:
    """What transformers' own greedy decoding adds to the prompt."""

    def found() -> list[list[int]]:
        out = model.generate(**inputs, do_sample=False, max_new_tokens=new, pad_token_id=0, eos_token_id=None)
        return out[:, inputs["input_ids"].shape[1] :].tolist()

    return once(model, ("greedy", new), inputs, found)


def plain(model: LlamaForCausalLM, inputs: Inputs, *, new: int = NEW, seed: int = 0) -> list[list[int]]:
    """Plain sampling at temperature 1 through the same loop."""

    def found() -> list[list[int]]:
        return run(model, NoDraft(), inputs, Match(), new=new, seed=seed, temperature=1.0).sequences.tolist()

    return once(model, ("plain", new, seed), inputs, found)


_FOUND: WeakKeyDictionary[torch.nn.Module, dict[Any, list[list[int]]]] = WeakKeyDictionary()


def once(model: torch.nn.Module, asked: tuple[Any, ...], inputs: Inputs, found: Callable[[], list[list[int]]]) -> list[list[int]]:
    """`found()`, computed once for the same model with the same weights and hooks, and the same inputs."""
    weights = tuple(parameter.detach().double().sum().item() for parameter in model.parameters())
    forwards = tuple("forward" in vars(module) for module in model.modules())
    given = tuple((name, value.shape, value.numpy().tobytes()) for name, value in inputs.items())
    known = _FOUND.setdefault(model, {})
    key = (asked, given, weights, forwards, tuple(hooks(model)), model.training)
    if key not in known:
        known[key] = found()
    return [list(row) for row in known[key]]


def markov(successor: Callable[[int], int], size: int = 50) -> LlamaForCausalLM:
    """A transformer that always follows token v with `successor(v)`: its layers add nothing, its head is a permuted embedding."""
    sizes = {"hidden_size": 64, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=size, num_hidden_layers=1, max_position_embeddings=256, **sizes)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size, 64))
        model.lm_head.weight.zero_()
        for token in range(size):
            model.lm_head.weight[successor(token), token] += 10 - 0.01 * token  # where two tokens share a successor, both reach it
    return model


def fives(token: int) -> int:
    """Counts round and round in fives: 0 1 2 3 4 0 ..., 5 6 7 8 9 5 ..."""
    return token // 5 * 5 + (token + 1) % 5


def hooks(model: LlamaForCausalLM) -> list[tuple[int, int]]:
    """How many hooks every module has. transformers leaves some of its own behind, once it has been asked for hidden states."""
    return [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
