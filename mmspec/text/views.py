"""`mmspec.text.view` and `mmspec.text.ensemble`: what a drafter reads of prompts with pictures or sound, by name."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mmspec.drafters.model.ensemble import Views
from mmspec.drafters.model.mixing import Weights, weights_of
from mmspec.drafters.views.base import View, same_prompt
from mmspec.drafters.views.sound import Cropped
from mmspec.drafters.views.text_views import CaptionView, Drop, Newline
from mmspec.drafters.views.vision_inputs import Pooled, Pruned
from mmspec.run.arguments import public_call

NAMES = ("drop", "newline", "caption", "own", "pooled", "pruned")
"""Views of prompts with pictures."""
_MARKS = ("image", "img", "vision", "video", "audio", "boi", "eoi")  # in the names a processor gives its special tokens


@public_call
def view(
    name: str,
    processor: Any = None,
    *,
    captions: Iterable[str] | None = None,
    captioner: Callable[[Any], Sequence[str]] | None = None,
    prefix: str = "image: ",
    newline: int | None = None,
    size: int = 2,
    keep: float = 0.5,
    top: float = 1.0,
    margin: float = 1.0,
) -> View:
    """Return a view of prompts with pictures or sound by name, for `generate(..., view=...)`.

    Args:
        name: "drop" (text only), "newline" (one newline for every picture), "caption" (a caption for every picture), "own" (own pixels),
            "pooled" (patches averaged `size` by `size`), "pruned" (the share `keep` of picture positions with the most attention from the
            target's text; the share `top` of those by attention, the rest evenly), "cropped" (Whisper: the recording and `margin` seconds
            behind it, in place of the whole window).
        processor: the target's processor or tokenizer: needed by "newline" and "caption"; "drop" reads from it which further ids enclose
            pictures.
        captions: one for every picture, in the order of the batch.
        captioner: called with the request's inputs, returns the captions.
        prefix: text before a caption.
        newline: id of the newline, for tokenizers without one.
        size: side of the averaged squares of "pooled", in patches.
        keep: share of picture positions kept by "pruned".
        top: share of the kept positions chosen by attention.
        margin: seconds of silence that "cropped" keeps.

    Returns:
        The view.

    Raises:
        ValueError: for an unknown name, or where something that a view needs is missing.
    """
    if name == "cropped":
        return Cropped(margin)
    if name not in NAMES:
        raise ValueError(f"unknown view {name!r}; valid: {', '.join(NAMES)}, cropped")
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is None and (name == "caption" or (name == "newline" and newline is None)):
        raise ValueError(f"view {name!r} needs the target's processor or tokenizer: view({name!r}, processor)")
    marks = brackets(processor) if tokenizer is not None else ()
    if name == "drop":
        return Drop(marks)
    if name == "newline":
        return Newline(_newline(tokenizer) if newline is None else newline, marks)
    if name == "caption":
        given = None if captions is None else tuple(captions)
        return CaptionView(lambda caption: encoded(tokenizer, prefix + caption), given, captioner, marks)
    if name == "own":
        return same_prompt
    return Pooled(size) if name == "pooled" else Pruned(keep, top)


@public_call
def ensemble(*parts: View | str, weights: str | Sequence[float] | Weights = "adaptive") -> Views:
    """Return an ensemble of several views of each request in one batched forward, for `generate(..., view=...)`.

    Args:
        parts: views, or names of `view` that need no processor.
        weights: "adaptive" (TABED), "uniform" (IbED), "inverse-kl", "confidence", one number for every view, or an object of
            `mmspec.drafters.model.mixing`.

    Returns:
        The ensemble, itself a view.

    Raises:
        ValueError: for no views or unknown weights.
    """
    return Views(parts, weights_of(weights))  # type: ignore[arg-type]


def encoded(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of `text` without special tokens."""
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return ids[1:] if ids and ids[0] == tokenizer.bos_token_id else ids


def brackets(processor: Any) -> tuple[int, ...]:
    """Return the ids of the special tokens around and between pictures, as far as the processor names them."""
    tokenizer = getattr(processor, "tokenizer", processor)
    known = tokenizer.get_vocab()
    found = {**vars(tokenizer), **vars(processor)}
    named = (str(token) for name, token in found.items() if name.endswith("_token") and any(mark in name for mark in _MARKS))
    tiles = (token for token in tokenizer.get_added_vocab() if token.startswith("<row_") or token == "<global-img>")
    return tuple(sorted({known[token] for token in (*named, *tiles) if token in known}))


def _newline(tokenizer: Any) -> int:
    ids = encoded(tokenizer, "\n")
    if not ids or ids[-1] == tokenizer.unk_token_id:
        raise ValueError("the tokenizer has no newline: give the id to use, view('newline', newline=ID)")
    return ids[-1]
