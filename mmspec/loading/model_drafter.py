"""A drafter that is a transformers model: loaded, aligned where its tokenizer differs, and made lighter where its options say so."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mmspec.loading.transformers import load_model

if TYPE_CHECKING:
    from mmspec.loading.text import Pair
    from mmspec.run.config import DrafterSection

LIGHTER = ("view", "vocabulary", "int8")
"""Options of a drafter model that `mmspec.text.aligned_drafter` takes."""
_BESIDES = 0.02  # vision-language models have picture tokens that their drafters lack


def with_model(pair: "Pair", device: Any) -> "Pair":
    """Return `pair` with the model that its config names as the drafter. ValueError for one that cannot be loaded, and wrong options."""
    section = pair.config.drafter
    check_options(section, *LIGHTER)
    assert section.path is not None  # without one it is the mini's own
    model, processor = load_model(section.path, pair.config.target.dtype, device)
    pair = replace(pair, drafter=model, model=model, drafter_name=section.path)
    if not _same(pair.tokenizer, processor):
        pair = replace(pair, own_tokenizer=getattr(processor, "tokenizer", processor))
    options = {key: section.options[key] for key in LIGHTER if key in section.options}
    if pair.own_tokenizer is None and not options:
        return pair
    if section.tree is not None:
        why = "has another vocabulary than" if pair.own_tokenizer is not None else f"is aligned, for {', '.join(options)}, with"
        raise ValueError(f"{pair.drafter_name} {why} {pair.name}, which supports chains only: leave tree out")
    return replace(pair, drafter=aligned_model(pair, options))


def aligned_model(pair: "Pair", options: dict[str, Any]) -> Any:
    """Return the drafter of a pair's model: draft tokens come from the tokens that the target and it share.

    Args:
        pair: the pair, with its model.
        options: of `mmspec.text.aligned_drafter`, those in `LIGHTER`.

    Raises:
        ValueError: for options that the drafter does not support.
    """
    from mmspec.text import aligned_drafter

    theirs = pair.tokenizer if pair.own_tokenizer is None else pair.own_tokenizer
    return aligned_drafter(pair.target, pair.tokenizer, pair.model, theirs, pair.config.run.temperature, pair.accept, **options)


def check_options(section: "DrafterSection", *valid: str) -> None:
    """Raise ValueError for options of a drafter model other than `valid` ones and "stop_below"."""
    for key in section.options:
        if key not in ("stop_below", *valid):
            raise ValueError(f"unknown key {key!r} for drafter {section.kind!r}; valid: {', '.join(('stop_below', *valid))}")


def _same(tokenizer: Any, processor: Any) -> bool:
    """True if two vocabularies number the same tokens alike, apart from a few extra ones."""
    few, many = sorted((each.get_vocab() for each in (tokenizer, getattr(processor, "tokenizer", processor))), key=len)
    return len(many) - len(few) <= _BESIDES * len(many) and few.items() <= many.items()
