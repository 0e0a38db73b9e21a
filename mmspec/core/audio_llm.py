"""Speech language models (Qwen2-Audio, Voxtral and their kin): decoder-only models whose prompts hold sound where placeholders stand.

Sound is encoded once a request, by the model's own forward, which is stopped at the door of its language model. What stands there
is the prompt as the decoder reads it; from then on positions within the prompt are fed from it, and all others by their ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.cache import SlotCache
from mmspec.core.family import DecoderOnly, side_by_side, text_prompt
from mmspec.core.layout import Layout

_MASKS = ("feature_attention_mask", "input_features_mask")  # which frames of the features are sound: one name or the other, or none


@dataclass(frozen=True, slots=True)
class Heard:
    """A prompt that has been listened to: what the decoder reads at its positions, packed to the left."""

    embeds: Tensor  # [B, P, D]
    lengths: Tensor  # [B]

    def over(self, embeds: Tensor, positions: Tensor) -> Tensor:
        """`embeds` [B, M, D] of the ids at `positions` [B, M], the prompt's own in place of those within it."""
        place = positions.clamp(max=self.embeds.shape[1] - 1)[..., None].expand_as(embeds)
        return torch.where((positions < self.lengths[:, None])[..., None], self.embeds.gather(1, place), embeds)


@dataclass(frozen=True)
class AudioLLM(DecoderOnly):
    """A language model that hears. `placeholder` is the id that stands for sound; `trims` says that it can leave logits out."""

    placeholder: int = -1
    trims: bool = False

    @staticmethod
    def of(model: Any) -> "AudioLLM":
        base = DecoderOnly.of(model)
        trims = "logits_to_keep" in signature(model.forward).parameters
        return AudioLLM(base.layers, base.window, base.mixed, model.config.audio_token_id, trims)

    @property
    def unsaid(self) -> tuple[int, ...]:
        """Ids that are read and never written: a written placeholder would call for sound that is not there."""
        return (self.placeholder,)

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, Heard]:
        """A cache and the prompt as it is heard: `inputs["heard"]`, where somebody has listened before, else by running the encoder."""
        return SlotCache(self.layers, capacity), inputs.get("heard") or self._listen(model, inputs)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Heard, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        out = model(
            inputs_embeds=state.over(model.get_input_embeddings()(layout.ids), layout.positions),
            attention_mask=self._masks(model, layout),
            position_ids=layout.positions,
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=bool(states),
            **({"logits_to_keep": keep} if self.trims else {}),
        )
        return out.logits[:, -keep:], side_by_side(out.hidden_states, states)

    def _listen(self, model: Any, inputs: Mapping[str, Any]) -> Heard:
        ids, mask = text_prompt(inputs)
        self._check(model, inputs, bool(((ids == self.placeholder) & mask).any()))
        known = signature(model.forward).parameters
        embeds = _at_the_door(model, {key: value for key, value in inputs.items() if key in known})
        if embeds.shape[1] != ids.shape[1]:
            raise ValueError(
                f"the prompt has {ids.shape[1]} tokens, but {embeds.shape[1]} with its sound: repeat the placeholder "
                f"{self.placeholder} for every position the sound takes, as the model's processor does"
            )
        order = torch.argsort((~mask).long(), dim=1, stable=True)  # packed as a session packs ids
        return Heard(embeds.gather(1, order[..., None].expand_as(embeds)), mask.sum(1))

    def _check(self, model: Any, inputs: Mapping[str, Any], marked: bool) -> None:
        name, known = type(model).__name__, signature(model.forward).parameters
        if marked != ("input_features" in inputs):
            why = "placeholders for sound but no input_features" if marked else "input_features but no placeholder for them"
            raise ValueError(f"inputs has {why} (the placeholder is {self.placeholder}): pass what {name}'s processor returned")
        for mask in _MASKS:
            if marked and mask in known and mask not in inputs:
                raise ValueError(f"inputs has input_features but no {mask}: pass what {name}'s processor returned")


class _Door(Exception):
    """Raised in front of the language model, so that it does not run; `embeds` [B, P, D] is what it would have read."""

    def __init__(self, embeds: Tensor):
        super().__init__()
        self.embeds = embeds


def _at_the_door(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """The embeddings [B, P, D] that `model` hands its language model. ValueError where sound and prompt do not fit together."""

    def door(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        raise _Door(kwargs["inputs_embeds"])

    handle = model.get_decoder().register_forward_pre_hook(door, with_kwargs=True)
    try:
        model(**inputs, use_cache=False)
    except _Door as found:
        return found.embeds
    except (ValueError, RuntimeError, IndexError) as error:
        raise ValueError(f"the sound does not fit the prompt ({str(error).splitlines()[0]}): pass what the processor returned") from None
    finally:
        handle.remove()
    raise AssertionError(f"{type(model).__name__} ran without its language model")
