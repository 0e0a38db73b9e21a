"""The treatment of every argument of `generate` in a drop-in request: supported, supported without drafting, refused, or without effect.

The tables name every setting of transformers 5.24; `docs/drop-in.md` is made from them. A setting that a later release adds is refused
until it is listed here.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from transformers import GenerationConfig

from mmspec.models.compat import generation_defaults
from mmspec.models.compat.cache_name import CALLERS_NAMES

NATIVE, PLAIN, REFUSED, NO_EFFECT = "honoured", "honoured without drafting", "refused", "no effect on the output"


def _set(value: Any) -> bool:
    return value is not None and value is not False


def _above(least: float) -> Callable[[Any], bool]:
    return lambda value: value is not None and value > least


REFUSALS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_beams": (_above(1), "speculate decodes one path a row; leave num_beams at 1"),
    "num_beam_groups": (_above(1), "speculate decodes one path a row; leave num_beam_groups at 1"),
    "constraints": (_set, "speculate has no constrained beam search; leave it out"),
    "force_words_ids": (_set, "speculate has no constrained beam search; leave it out"),
    "penalty_alpha": (_above(0), "speculate has no contrastive search; leave it out"),
    "dola_layers": (_set, "speculate does not contrast layers; leave it out"),
    "output_attentions": (_set, "speculate returns sequences only; turn it off"),
    "output_hidden_states": (_set, "speculate returns sequences only; turn it off"),
    "output_scores": (_set, "speculate returns sequences only; turn it off"),
    "output_logits": (_set, "speculate returns sequences only; turn it off"),
    "is_assistant": (_set, "a model that drafts is given as speculate(drafter=model); turn it off"),
    "use_mtp": (_set, "speculate drafts in its place; leave it out and pass speculate(drafter='mtp')"),
    "prompt_lookup_num_tokens": (_set, "speculate drafts in its place; leave it out and pass speculate(drafter='lookup')"),
    "assistant_early_exit": (_set, "speculate drafts in its place; leave it out and pass speculate(drafter=EarlyExit(layers))"),
    "assistant_ensemble_weight": (_set, "it changes the output; leave it out, or choose a lossy rule by speculate(accept=...)"),
    "speculation_type": (_set, "speculate drafts in its place; leave it out"),
}
"""Fields of GenerationConfig that are refused: when, and what to do."""

_BEAMS, _ASSISTED = "only beam search reads it", "only transformers' own assisted decoding reads it"

FIELDS: dict[str, tuple[str, str]] = {
    **{name: (REFUSED, message) for name, (_, message) in REFUSALS.items()},
    **dict.fromkeys(("max_length", "max_new_tokens"), (NATIVE, "a row's budget")),
    **dict.fromkeys(("min_length", "min_new_tokens"), (NATIVE, "a processor")),
    "max_time": (NATIVE, "asked after every committed token"),
    "stop_strings": (NATIVE, "with `tokenizer=`; asked after every committed token, row by row"),
    "do_sample": (NATIVE, "coupled sampling: plain sampling's own tokens"),
    **dict.fromkeys(
        ("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "renormalize_logits"),
        (NATIVE, "a processor"),
    ),
    **dict.fromkeys(
        (
            *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids"),
            *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
            *("suppress_tokens", "begin_suppress_tokens", "sequence_bias"),
        ),
        (NATIVE, "a processor"),
    ),
    "watermarking_config": (NATIVE, "green lists node by node; SynthID keeps a state and is decoded without drafting"),
    "guidance_scale": (PLAIN, "its processor runs the model on a prompt of its own"),
    "token_healing": (NATIVE, "`generate` mends the prompt before decoding; with `tokenizer=`"),
    "num_return_sequences": (NATIVE, "`generate` repeats the rows; each has noise of its own (pictures: without drafting)"),
    "return_dict_in_generate": (NATIVE, "an output with `sequences`; no cache is handed out"),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), (NATIVE, "")),
    "cache_implementation": (PLAIN, "'quantized' and 'offloaded...'; the others give the output of mmspec's own cache"),
    "cache_config": (PLAIN, "belongs to cache_implementation='quantized'"),
    "use_cache": (NO_EFFECT, "mmspec keeps its own cache"),
    "max_cache_len": (NO_EFFECT, "sizes a cache that mmspec does not use"),
    "prefill_chunk_size": (NO_EFFECT, "cuts the prompt's forward into parts"),
    **dict.fromkeys(("compile_config", "disable_compile", "continuous_batching_config", "low_memory"), (NO_EFFECT, "how forwards are run")),
    **dict.fromkeys(("early_stopping", "length_penalty", "diversity_penalty"), (NO_EFFECT, _BEAMS)),
    **dict.fromkeys(
        (
            *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
            *("max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind"),
        ),
        (NO_EFFECT, _ASSISTED),
    ),
    "transformers_version": (NO_EFFECT, "a note in the file"),
}
"""Every public field of GenerationConfig -> (how a drop-in request treats it, a note)."""

WHEN_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff")
"""Fields that `generate` reads when it samples only."""
READ_ELSEWHERE = frozenset(
    (
        *("max_length", "max_new_tokens", "return_dict_in_generate", "remove_invalid_values", "renormalize_logits"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "cache_implementation", "cache_config"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    )
)
"""Fields of codes' models that a call has arguments for, that the family reads itself, or that change no code."""

ARGUMENTS: dict[str, tuple[str, str]] = {
    "inputs": (NATIVE, "the prompt"),
    "generation_config": (NATIVE, "field by field, see below"),
    "logits_processor": (NATIVE, "class by class, see below"),
    "stopping_criteria": (NATIVE, "class by class, see below"),
    "prefix_allowed_tokens_fn": (NATIVE, "asked by row for every sequence that a draft can reach"),
    "synced_gpus": (REFUSED, "ranks would wait for each other at different steps"),
    "assistant_model": (REFUSED, "pass speculate(drafter=model)"),
    "assistant_tokenizer": (REFUSED, "pass speculate(drafter=mmspec.text.aligned_drafter(...))"),
    "tokenizer": (NATIVE, "for stop_strings and token_healing"),
    "streamer": (NATIVE, "one token at a time; with several rows without drafting"),
    "negative_prompt_ids": (PLAIN, "belongs to guidance_scale"),
    "negative_prompt_attention_mask": (PLAIN, "belongs to guidance_scale"),
    "custom_generate": (NATIVE, "speculate(...) itself"),
    "trust_remote_code": (NO_EFFECT, "speculate(...) is no remote code"),
}
"""Every named argument of `generate`, and what it takes by keyword for generation itself."""

INPUTS: dict[str, tuple[str, str]] = {
    "input_ids": (NATIVE, ""),
    "attention_mask": (NATIVE, "padding on the left; refused with padding on the right, without drafting with gaps"),
    "position_ids": (PLAIN, "honoured with drafting where they are what the mask says"),
    "token_type_ids": (PLAIN, "honoured with drafting by families that read pictures"),
    CALLERS_NAMES[0]: (PLAIN, "a cache of the caller's is filled as transformers fills it"),
    CALLERS_NAMES[1]: (PLAIN, "the name of `cache` before transformers 5.24"),
    "inputs_embeds": (PLAIN, "of an encoder: honoured"),
    "decoder_input_ids": (NATIVE, ""),
    "decoder_attention_mask": (PLAIN, "honoured with drafting where it is padding on the left"),
    "encoder_outputs": (NATIVE, ""),
    "pixel_values, input_features and kin": (NATIVE, "whatever the model's `forward` takes, where mmspec drives the family"),
    "mm_encoder_outputs": (PLAIN, "where the caller passes it"),
    "logits_to_keep": (NO_EFFECT, "the last logits are read"),
    "anything else": (PLAIN, ""),
}
"""What a model reads."""


def refuse(config: GenerationConfig, call: Any) -> None:
    """Raise ValueError for a setting or argument without a speculative form.

    Args:
        config: the generation config of the request, defaults filled in.
        call: a `compat.GenerateCall`, or None.

    Raises:
        ValueError: naming the setting, in one line.
    """
    for name, (refused, message) in REFUSALS.items():
        value = getattr(config, name, None)
        if refused(value):
            raise ValueError(f"{name} is {'on' if value is True else repr(value)}: {message}")
    _refuse_unknown(config)
    if call is None:
        return
    if call.assistant_model is not None:
        raise ValueError("assistant_model is set: speculate drafts in its place; leave it out and pass speculate(drafter=model)")
    if call.assistant_tokenizer is not None:
        raise ValueError("assistant_tokenizer is set: leave it out and pass speculate(drafter=mmspec.text.aligned_drafter(...))")
    if call.synced_gpus:
        raise ValueError("synced_gpus is on: ranks would wait for each other at different steps; turn it off")


def unread_field(config: Any, read: Collection[str]) -> tuple[str, Any, Any] | None:
    """Return the first field of a generation config that is set, may change what is generated, and is not read.

    Args:
        config: the generation config.
        read: names of the fields that are read; those of `WHEN_SAMPLING` need not be named where the config does not sample.

    Returns:
        Its name, its value and the value that leaves the output alone; None if there is none.
    """
    defaults = generation_defaults()
    inert = () if config.do_sample else WHEN_SAMPLING
    for name, (treatment, _) in FIELDS.items():
        value = getattr(config, name, None)
        if treatment != NO_EFFECT and name not in read and name not in inert and value and value != defaults.get(name):
            return name, value, defaults.get(name)
    return None


def _refuse_unknown(config: GenerationConfig) -> None:
    fresh, defaults = vars(GenerationConfig()), generation_defaults()
    for name, usual in fresh.items():
        value = getattr(config, name, None)
        if name.startswith("_") or name in FIELDS or value == usual or value == defaults.get(name) or not _set(value):
            continue
        raise ValueError(f"{name} is {value!r}: this version of mmspec does not know that setting; leave it out")


def cache_reason(config: Any) -> str | None:
    """Return why a request's cache settings need transformers' own loop; None if they do not."""
    kind = config.cache_implementation
    return f"cache_implementation is {kind!r}" if kind is not None and ("offloaded" in kind or "quantized" in kind) else None


def own_inputs(config: Any, call: Any, model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's inputs as the caller passed them: keywords of `generate` that are no settings.

    Outside a call of `generate`, the keywords of the decoding function.
    """
    if call is None:
        return {key: value for key, value in model_kwargs.items() if value is not None}
    return {key: value for key, value in call.keywords.items() if not hasattr(config, key) and key not in ARGUMENTS}
