"""What a drafter reads of a request: the target's prompt, without what it cannot read, and with what the target has encoded already.

A view is called with the target's prompt and its session, once a request, and gives the drafter's prompt. This file chooses one where
none is asked for; `text_views`, `vision_width` and `ensemble` hold those of prompts with pictures. `distil-whisper` (Gandhi et al. 2023) is
the case that shares an encoder: its assistant is a shallow decoder over the target's own, frozen encoder.
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
    """All that the target reads."""
    return prompt


def own_encoder(prompt: Any, session: Any) -> Any:
    """The target's source and its decoder's opening, whatever opening the drafter's own config asks for; its encoder runs once."""
    if session.target.family.source in prompt:
        prompt = {key: value for key, value in prompt.items() if key != "encoder_outputs"}  # the target's own
    return {**prompt, **_opening(prompt, session)}


def shared_encoder(prompt: Any, session: Any) -> Any:
    """The target's encoder states, and its decoder's opening."""
    return {**prompt, **_opening(prompt, session), "encoder_outputs": session.state.outputs}


def opening_alone(prompt: Any, session: Any) -> Any:
    """For a drafter that only reads text: the decoder's opening, nothing of the sound."""
    opening = _opening(prompt, session)
    return {"input_ids": opening["decoder_input_ids"], "attention_mask": opening["decoder_attention_mask"]}


def own_pixels(prompt: Any, session: Any) -> Any:
    """All that the target reads, for the drafter's own encoder. Features the target's encoder made (`mm_encoder_outputs`) are not the
    drafter's: then the words alone."""
    return text_alone(prompt, session) if "mm_encoder_outputs" in prompt else prompt


def shared_modalities(prompt: Any, session: Any) -> Any:
    """The target's prompt as the target has seen or heard it."""
    return {**prompt, "merged": session.state}


def text_alone(prompt: Any, session: Any) -> Any:
    """For a drafter that only reads text: the prompt without what stands for pictures or sound, and without what encloses it."""
    return Drop()(prompt, session)


def view_of(target: HFTarget, drafter: Any, translated: bool = False) -> View:
    """What `drafter`, a transformers model, reads of the requests of `target`. ValueError where it cannot read them.

    With `translated` its prompts come in its own ids, placeholders too.
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
        return own_encoder
    return opening_alone if ours.source == "input_features" else same_prompt


def seeing(target: HFTarget, drafter: Any) -> View:
    """Own pixels: all that the target reads. Where the drafter's model is the target's, what that has seen already."""
    return shared_modalities if drafter is target.model else own_pixels


def can_see(target: HFTarget, drafter: Any) -> bool:
    """Whether a drafter has the senses that prompts of `target` call for."""
    ours, theirs = target.family, family_of(drafter)
    return type(ours) is type(theirs) and getattr(ours, "sense", None) == getattr(theirs, "sense", None)


def _same_eyes(target: HFTarget, drafter: Any, translated: bool) -> bool:
    """Whether what the target's processor returns is, as far as configs tell, what the drafter's own would."""
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
