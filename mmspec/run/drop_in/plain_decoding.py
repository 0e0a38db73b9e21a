"""transformers' own decoding loop in a drop-in request, with mmspec's noise; the noise, the padding and the output of any request."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from mmspec.core.noise import Noise
from mmspec.models import compat
from mmspec.run.drop_in.stops import HostStops


def request_noise(seed: int | Sequence[int] | None, config: Any, rows: int, device: torch.device) -> Noise:
    """Return the noise of a request.

    Args:
        seed: an int, one per row, or None to draw one from torch's generator. Greedy requests do not advance it.
        config: the generation config.
        rows: rows of the batch.
        device: where the noise is used.

    Returns:
        The noise, one seed a row.
    """
    if seed is None:
        seed = int(torch.randint(2**62, ())) if config.do_sample else 0
    return Noise.from_seed(seed, rows, device)


def decode_plainly(
    model: Any,
    ids: Tensor,
    processors: Sequence[Any],
    criteria: Any,
    config: Any,
    streamer: Any,
    noise: Noise | None,
    model_kwargs: Mapping[str, Any],
) -> Any:
    """Decode by transformers' own loop.

    Args:
        model: the model.
        ids: LongTensor [B, P], the prompt.
        processors, criteria: logits processors and stopping criteria.
        config: the generation config, defaults filled in.
        streamer: the caller's streamer.
        noise: sampled tokens are drawn with it; None for greedy decoding.
        model_kwargs: the inputs as prepared by `generate`.

    Returns:
        What `generate` returns.
    """
    every, config = LogitsProcessorList(processors), copy.copy(config)
    if noise is not None:
        every.append(NoiseProcessor(noise, ids.shape[1]))
    config.do_sample = False
    return compat.plain_sample(
        model, ids, logits_processor=every, stopping_criteria=criteria, generation_config=config, streamer=streamer, **model_kwargs
    )


class NoiseProcessor(LogitsProcessor):
    """Adds the Gumbel noise of each row and output position, so that the argmax is the token that mmspec would draw.

    Args:
        noise: of the request.
        prompt: number of tokens of the prompt.
    """

    def __init__(self, noise: Noise, prompt: int):
        self.noise, self.prompt = noise, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """Return `scores` [B, V] plus the noise at the position that follows `input_ids` [B, L]."""
        position = torch.full((len(scores), 1), input_ids.shape[1] - self.prompt, device=scores.device)
        return scores + self.noise.value(position)[:, 0].gumbel(scores.shape[-1])


def pad_of(config: Any, ends: HostStops) -> int:
    """Return the token that fills rows which have ended: the config's padding, else an end token, else 0."""
    pad, own = config.pad_token_id, config.eos_token_id
    if pad is not None:
        return int(pad)
    own = [] if own is None else list(own) if isinstance(own, (list, tuple)) else [own]
    return [*own, *ends.values, 0][0]


def returned(model: Any, config: Any, sequences: Tensor) -> Any:
    """Return `sequences` [B, P + T] in the form that the config asks for."""
    if not config.return_dict_in_generate:
        return sequences
    kind = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    return kind(sequences=sequences)  # pyright: ignore[reportArgumentType]
