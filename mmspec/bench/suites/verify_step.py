"""What verifying several draft tokens costs beside one token, against the floor that memory bandwidth sets, eager and captured."""

from collections.abc import Callable, Mapping, Sequence
from statistics import quantiles
from time import perf_counter
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.bench.compare.peers import synchronize
from mmspec.core.records import Draft
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget

SEVEN_B = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000}
"""The shape of Llama 7B."""
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 256}
"""A shape that shows on a CPU that everything runs."""


def random_llama(shape: Mapping[str, int], device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """Make a Llama with random weights on the device itself.

    Args:
        shape: of its config.
        device: where it is made.
        dtype: dtype of its weights.

    Returns:
        The model, in eval mode, without an end token.
    """
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=8192)).eval()  # pyright: ignore[reportArgumentType]
    finally:
        torch.set_default_dtype(before)
    model.generation_config.eos_token_id = None
    return model


def timed(step: Callable[[], object], device: torch.device, repeats: int, warm: int = 5) -> tuple[float, float, float]:
    """Time a step.

    Args:
        step: called `warm` times untimed, then `repeats` times.
        device: waited for before and after each call.
        repeats: timed calls, at least 2.
        warm: untimed calls.

    Returns:
        Median and quartiles, in milliseconds.
    """
    low, middle, high = quantiles(call_seconds(step, device, repeats, warm), n=4, method="inclusive")
    return 1000 * middle, 1000 * low, 1000 * high


def call_seconds(step: Callable[[], object], device: torch.device, repeats: int, warm: int = 5) -> list[float]:
    """Time a step call by call.

    Args:
        step, device, warm: as in `timed`.
        repeats: timed calls.

    Returns:
        Seconds of each timed call.
    """
    seconds = []
    for turn in range(warm + repeats):
        synchronize(device)
        start = perf_counter()
        step()
        synchronize(device)
        if turn >= warm:
            seconds.append(perf_counter() - start)
    return seconds


def bandwidth(device: torch.device, size: int) -> float:
    """Measure bytes a second that a copy of `size` bytes reads and writes."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (timed(lambda: target.copy_(source), device, 20)[0] / 1000)


def verify_steps(
    model: Any, tokens: Sequence[int], context: int, repeats: int, options: Mapping[str, Any] | None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Time `score` of drafts of several sizes on a cached context, eager and captured.

    Args:
        model: a decoder-only model.
        tokens: sizes of the drafts, the pending token included.
        context: cached positions.
        repeats: timed calls of each.
        options: of `torch.compile`; the default captures CUDA graphs. None: eager only.

    Returns:
        A row for each run and size, and the floor: bytes of the weights, bytes a second of a copy, and milliseconds.
    """
    device = model.device
    size = sum(p.numel() * p.element_size() for p in model.parameters()) - model.model.embed_tokens.weight.nbytes
    speed = bandwidth(device, 2**30 if device.type == "cuda" else 2**22)
    floor = 1000 * size / speed
    eager = HFTarget(model, DecoderOnly.of(model), reserve=256)
    rows, targets = [], {"eager": eager} | ({} if options is None else {"captured": eager.capture(256, **options)})
    for name, target in targets.items():
        session, pending = _opened(target, context)
        for count in tokens:
            middle, low, high = timed(_step_of(session, pending, count), device, repeats)
            rows.append({"run": name, "tokens": count, "ms": middle, "low": low, "high": high, "times_floor": middle / floor})
    return rows, {"weight_bytes": size, "bytes_per_second": speed, "floor_ms": floor}


def _opened(target: HFTarget, context: int) -> tuple[Any, Draft]:
    """A session with `context` positions cached, and the pending token behind them."""
    device = target.model.device
    ids = torch.randint(target.model.config.vocab_size, (1, context), generator=torch.Generator().manual_seed(0)).to(device)
    session, pending = target.begin({"input_ids": ids})
    session.score(pending)
    session.commit(torch.zeros(1, 1, dtype=torch.long, device=device), 1)
    return session, Draft.root(ids[:, 0], torch.ones(1, dtype=torch.long, device=device))


def _step_of(session: Any, pending: Draft, tokens: int) -> Callable[[], object]:
    """A verify step of `tokens` nodes that leaves the session as it was."""
    device = pending.nodes.device
    budget, nothing = torch.full((1,), tokens, device=device), torch.full((1, tokens), -1, device=device)
    draft = pending.extend_chain(pending.nodes.expand(1, tokens - 1), budget) if tokens > 1 else pending

    def step() -> None:
        session.score(draft)
        session.commit(nothing, 0)

    return step
