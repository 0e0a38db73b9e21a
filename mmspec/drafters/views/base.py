"""Views: what a drafter reads of a request, made from the target's prompt and from what the target has already encoded.

A view is called once a request with the target's prompt and its session, and returns the drafter's prompt. This module chooses a view
where none is given; `text_views`, `vision_inputs` and `model.ensemble` hold views of prompts with pictures. Distil-Whisper (Gandhi et al.
2023) shares the encoder: its assistant is a shallow decoder on the target's frozen encoder.
"""

from collections.abc import Callable
from typing import Any

import torch

from mmspec.drafters.views.text_views import Drop
from mmspec.models.families.encoder_decoder import DecoderAlone, EncoderDecoder
from mmspec.models.families.mllama import Mllama
from mmspec.models.families.multimodal import Multimodal
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget

View = Callable[[Any, Any], Any]
"""(the target's prompt, the target's session) -> the drafter's prompt. One with a true attribute `late` needs the target to have run it."""
_ENCODER_SIZES = ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "d_model")


def same_prompt(prompt: Any, session: Any) -> Any:
    """Return the target's prompt."""
    return prompt


def own_encoder(prompt: Any, session: Any) -> Any:
    """Return the target's source and decoder prompt; the drafter runs its own encoder."""
    if session.target.family.source in prompt:
        prompt = {key: value for key, value in prompt.items() if key != "encoder_outputs"}  # the target's own
    return {**prompt, **_opening(prompt, session)}


def own_opening(prompt: Any, session: Any) -> Any:
    """Return the target's source, and its decoder prompt without languages and tasks, for a drafter of one language with its own encoder.

    The text before the window and whether timestamps are written stay in the decoder prompt.
    """
    source, config = session.target.family.source, session.target.model.generation_config
    if source not in prompt:
        return own_encoder(prompt, session)
    names = [getattr(config, name, None) or {} for name in ("lang_to_id", "task_to_id")]
    spoken = torch.tensor([number for ids in names for number in ids.values()])
    if not len(spoken):  # the drafter's own, for a config of before these settings
        return {source: prompt[source]}
    opening = _opening(prompt, session)
    ids = opening["decoder_input_ids"]
    kept = ~torch.isin(ids, spoken.to(ids.device)).any(0)
    return {source: prompt[source], **{name: values[:, kept] for name, values in opening.items()}}


def shared_encoder(prompt: Any, session: Any) -> Any:
    """Return the target's encoder states and decoder prompt."""
    return {**prompt, **_opening(prompt, session), "encoder_outputs": session.state.outputs}


def opening_alone(prompt: Any, session: Any) -> Any:
    """Return the decoder prompt only, for a drafter that reads text but no sound."""
    opening = _opening(prompt, session)
    return {"input_ids": opening["decoder_input_ids"], "attention_mask": opening["decoder_attention_mask"]}


def own_pixels(prompt: Any, session: Any) -> Any:
    """Return the target's prompt for the drafter's own encoder; without pixels (`mm_encoder_outputs`), the text alone."""
    return text_alone(prompt, session) if "mm_encoder_outputs" in prompt else prompt


def shared_modalities(prompt: Any, session: Any) -> Any:
    """Return the target's prompt with the pictures and sounds as the target has encoded them."""
    return {**prompt, "merged": session.state}


def text_alone(prompt: Any, session: Any) -> Any:
    """Return the prompt without placeholders of pictures or sound and the ids that enclose them."""
    return Drop()(prompt, session)


def view_of(target: HFTarget, drafter: Any, translated: bool = False) -> View:
    """Return the default view of `drafter`, a transformers model, on the requests of `target`.

    Args:
        target: the target.
        drafter: the drafter's transformers model.
        translated: prompts are mapped to the drafter's ids, placeholders included.

    Raises:
        ValueError: if the drafter cannot read the requests.
    """
    if not hasattr(drafter, "config"):
        kind = f"the class {drafter.__name__}" if isinstance(drafter, type) else f"a {type(drafter).__name__}"
        raise ValueError(f"drafter is {kind}: give None, a name, a transformers model, or a drafter object")
    ours, theirs = target.family, family_of(drafter)
    if isinstance(ours, (Multimodal, Mllama)):
        return seeing(target, drafter) if _same_eyes(target, drafter, translated) else text_alone
    if not isinstance(ours, EncoderDecoder):
        return same_prompt
    if isinstance(theirs, DecoderAlone):
        _check_sizes(target.model, drafter)
        return shared_encoder
    if isinstance(theirs, EncoderDecoder):
        if _same_encoder(target.model, drafter):
            return shared_encoder
        _check_source(target, drafter)
        return own_opening if translated and _speaks_one_language(drafter) else own_encoder
    return opening_alone if ours.source == "input_features" else same_prompt


def seeing(target: HFTarget, drafter: Any) -> View:
    """Return the view of a drafter that reads pictures: own pixels, or the target's encoded ones where both run the same model."""
    return shared_modalities if drafter is target.model else own_pixels


def can_see(target: HFTarget, drafter: Any) -> bool:
    """Return True if the drafter supports the modalities in prompts of `target`."""
    ours, theirs = target.family, family_of(drafter)
    return type(ours) is type(theirs) and getattr(ours, "modality", None) == getattr(theirs, "modality", None)


def _same_eyes(target: HFTarget, drafter: Any, translated: bool) -> bool:
    """True if the target's processor returns what the drafter's own would, as far as their configs tell."""
    ours, theirs = target.model.config, drafter.config
    marks = {getattr(family, "placeholders", None) for family in (target.family, family_of(drafter))}
    return can_see(target, drafter) and ours.model_type == theirs.model_type and (translated or len(marks) == 1)


def _opening(prompt: Any, session: Any) -> dict[str, Any]:
    ids, mask = session.target.family.prompt(session.target.model, prompt)
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask}


def _check_sizes(target: Any, drafter: Any) -> None:
    ours, theirs = ([getattr(model.config, size, None) for size in _ENCODER_SIZES] for model in (target, drafter))
    if ours != theirs:
        raise ValueError(
            f"{type(drafter).__name__} reads an encoder of {_ENCODER_SIZES} {theirs}, but the target's is {ours}: choose one distilled "
            "from this target, or load it with its own encoder (WhisperForConditionalGeneration)"
        )


def _speaks_one_language(drafter: Any) -> bool:
    """True for recognisers of English alone: they were trained without the tokens of languages and tasks in a target's decoder prompt."""
    return getattr(drafter.generation_config, "is_multilingual", None) is False


def _check_source(target: HFTarget, drafter: Any) -> None:
    """ValueError if the features of the target's sound are not those that the drafter's own encoder takes."""
    if target.family.source != "input_features":  # type: ignore[attr-defined]
        return
    for name, words in (("num_mel_bins", "mel bins"), ("max_source_positions", "positions of sound")):
        ours, theirs = getattr(target.model.config, name, None), getattr(drafter.config, name, None)
        if ours != theirs:
            raise ValueError(
                f"the target's encoder takes {ours} {words} and the drafter's {theirs}, so both cannot read the same features: "
                "choose a drafter with the same feature extractor"
            )


def _same_encoder(target: Any, drafter: Any) -> bool:
    """Whether two models encode alike, weight by weight: reading them all costs less than running one. Sizes alone would not tell."""
    ours, theirs = target.get_encoder(), drafter.get_encoder()
    if ours is theirs:
        return True
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    return mine.keys() == other.keys() and all(_equal(weight, other[name]) for name, weight in mine.items())


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))
