"""Checks of the arguments of the public calls, one per argument name, and bounds on draft sizes against the work asked for.

`check(accept=accept, max_new_tokens=max_new_tokens, ...)` refuses a wrong value with one line that names the argument, the value and what
is valid. Checks that need a model, a vocabulary or a catalogue stand where these are read.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any, TypeVar

import torch

from mmspec.core.control import MOST_DRAFTED, is_whole
from mmspec.utils.names import shown, wrong
from mmspec.utils.strict import strict

MOST_TOKENS = 2**31 - 1
F = TypeVar("F", bound=Callable[..., Any])
LEAST_BOUND = 256
"""Draft tokens, window, items and beams may always be this many; above it they may not exceed the work requested."""


def check(**given: Any) -> None:
    """Check arguments by name.

    Args:
        given: the arguments of a public call, by the names they have there.

    Raises:
        ValueError: for the first wrong one, in one line that names it.
        KeyError: for a name without a check, which is a mistake of the caller's code.
    """
    for name, value in given.items():
        CHECKS[name](name, value)


def public_call(function: F) -> F:
    """Make a public call refuse wrong arguments before its work begins: those with a check here, and others by their annotation."""
    return strict(function, CHECKS)


def check_rows(rows: int, **given: Any) -> None:
    """Check that arguments given one value per row have as many values as there are rows.

    Args:
        rows: rows of the batch.
        given: arguments by name; None, numbers and texts hold for all rows.

    Raises:
        ValueError: for the first of another length, in one line that names it.
    """
    for name, value in given.items():
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) != rows:
            raise ValueError(f"{name} has {len(value)} values for {rows} rows: give one for all rows, or one per row")


def check_drafted(name: str, value: Any, work: int) -> None:
    """Check a number of draft tokens a round, or a window, against the number of tokens requested per row.

    Args:
        name: "draft_length" or "window".
        value: the argument; only numbers are checked.
        work: largest number of tokens a row may commit.

    Raises:
        ValueError: above both `work` and `LEAST_BOUND`.
    """
    most = max(work, LEAST_BOUND)
    if is_whole(value) and value > most:
        raise ValueError(f"{name} is {value}, but a row is asked for {work} tokens: give at most {most}")


def check_items(k: int, width: int | None, items: int, beams: int | None = None) -> None:
    """Check the number of recommendations and of drafted beams against the catalogue.

    Args:
        k: recommendations a history.
        width: beams drafted a level, None for the default.
        items: items in the catalogue.
        beams: beams kept a level, None for k.

    Raises:
        ValueError: for more than both the catalogue holds and `LEAST_BOUND`.
    """
    most = max(items, LEAST_BOUND)
    if k > most:
        raise ValueError(f"k is {k}, but the catalogue has {items} items: ask for at most {most}")
    if beams is not None and beams > most:
        raise ValueError(f"beams is {beams}, but the catalogue has {items} items: keep at most {most}")
    bound = max(most, 4 * (k if beams is None else beams))
    if width is not None and width > bound:
        raise ValueError(f"width is {width}, but the catalogue has {items} items: draft at most {bound} beams")


def _whole(least: int, most: int, optional: bool = False) -> Callable[[str, Any], None]:
    def checked(name: str, value: Any) -> None:
        if not (optional and value is None) and not (is_whole(value) and least <= value <= most):
            raise wrong(
                name, value, f"give {least} to {most}" if is_whole(value) and value > most else f"give a whole number of at least {least}"
            )

    return checked


def _number(words: str, fits: Callable[[float], bool]) -> Callable[[str, Any], None]:
    """None, or a number that `fits`; never NaN."""

    def checked(name: str, value: Any) -> None:
        if value is None:
            return
        if not _is_number(value) or not fits(value):
            raise wrong(name, value, f"give {words}")

    return checked


def _is_number(value: Any) -> bool:
    return (is_whole(value) and abs(value) <= 2**63) or (isinstance(value, float) and not isnan(value))


def _is_name(value: Any, *names: str) -> bool:
    return isinstance(value, str) and value in names


def _numbers(words: str, fits: Callable[[float], bool]) -> Callable[[str, Any], None]:
    """As `_number`, or a sequence with one number per row."""
    one = _number(words, fits)

    def checked(name: str, value: Any) -> None:
        several = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        for each in value if several else (value,):
            one(name, each)
        if several and (not value or any(each is None for each in value)):  # pyright: ignore[reportGeneralTypeIssues]
            raise wrong(name, value, f"give {words}, or one per row")

    return checked


def _called(name: str, value: Any) -> None:
    if value is not None and (not callable(value) or isinstance(value, type)):
        raise wrong(name, value, "give a function")


def _all_called(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(map(callable, value)):
        raise wrong(name, value, "give a list of callable objects")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise wrong(name, value, "give True or False")


def _accept(name: str, value: Any) -> None:
    if not isinstance(value, str) and (isinstance(value, type) or not hasattr(value, "exactness")):
        raise wrong(name, value, "give 'exact', the name of a rule, or a rule object")


def _drafter(name: str, value: Any) -> None:
    if isinstance(value, dict) and value and all(isinstance(stage, str) for stage in value):  # of the stages of a model, as Bark takes them
        for each in value.values():
            _drafter(name, each)
        return
    plain = isinstance(value, bool | int | float | bytes | list | tuple | dict | type)
    if value is not None and (plain or type(value) is object):
        raise wrong(name, value, "give None, a name, a model, or a drafter object")


def _draft_length(name: str, value: Any) -> None:
    if not (is_whole(value) and 0 <= value <= MOST_DRAFTED) and not _is_name(value, "auto", "thompson") and not _begins(value):
        raise wrong(name, value, f"give 0 to {MOST_DRAFTED} draft tokens, 'auto', 'thompson' or a Control object")


def _window(name: str, value: Any) -> None:
    if value is not None and not (is_whole(value) and 1 <= value <= MOST_TOKENS) and not _is_name(value, "auto") and not _begins(value):
        raise wrong(name, value, "give at least 1 token (1 is plain decoding), 'auto', or a Control object")


def _begins(value: Any) -> bool:
    return hasattr(value, "begin") and not isinstance(value, type)


def _tree(name: str, value: Any) -> None:
    shape = hasattr(value, "grow") or hasattr(value, "paths")
    if (value is not None and not shape and not isinstance(value, str | Path | list | tuple)) or isinstance(value, type):
        raise wrong(name, value, "give None, a name, children per level such as (4, 2, 1), a template or its JSON file, or a shape")


def _batch(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) and (isinstance(value, str | bytes) or not hasattr(value, "__len__")):
        raise wrong(name, value, "give a list with one entry per row, or what the model's processor returned")
    if not len(value):
        raise wrong(name, value, "give at least one")


def _histories(name: str, value: Any) -> None:
    _batch(name, value)
    if isinstance(value, list | tuple) and (
        wrongs := [one for one in value if isinstance(one, str | bytes) or not hasattr(one, "__len__")]
    ):
        raise wrong(name, wrongs[0], "give a list of items for each user")


def _device(name: str, value: Any) -> None:
    try:
        torch.device(value if isinstance(value, str | torch.device) else "")
    except RuntimeError:
        raise wrong(name, value, "give a device such as cpu or cuda:0") from None


def _place(name: str, value: Any) -> None:
    text = str(value) if isinstance(value, str | Path) else ""
    if not text.strip() or "\0" in text or len(text) > 4095 or any(len(part.encode()) > 255 for part in Path(text).parts):
        raise wrong(name, value, "give the path of a file or folder")


def _voice(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, str | list | tuple) or hasattr(value, "samples")):
        raise wrong(name, value, "give the name of a voice or a VoiceSample, or one per text")


def _tokenizer(name: str, value: Any) -> None:
    if isinstance(value, type) or not callable(value) or not hasattr(value, "decode"):
        raise wrong(name, value, "give a transformers tokenizer or processor")


def _streamer(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, type) or not (hasattr(value, "put") and hasattr(value, "end"))):
        raise wrong(name, value, "give a transformers streamer, with put and end")


def _catalogue(name: str, value: Any) -> None:
    if isinstance(value, type) or not hasattr(value, "trie"):
        raise wrong(name, value, "give a mmspec.recsys.Catalogue, the items and their paths")


def _clients(name: str, value: Any) -> None:
    if isinstance(value, str | bytes | Mapping | type) or not (hasattr(value, "__len__") and hasattr(value, "__iter__")):
        raise wrong(name, value, "give a list of clients")


def _item_lists(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, str | bytes | Mapping | type) or not hasattr(value, "__len__")):
        raise wrong(name, value, "give a list of items, or None, for each history")


def _mask(name: str, value: Any) -> None:
    dtype = getattr(value, "dtype", None)
    if value is not None and (dtype is None or not str(dtype).endswith("bool")):
        found = shown(value) if dtype is None else f"a tensor of {str(dtype).removeprefix('torch.')}"
        raise ValueError(f"{name} is {found}: give a bool mask, such as catalogue.mask(items)")


def _group_rules(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, type) or not hasattr(value, "choose")):
        raise wrong(name, value, "give a mmspec.recsys.GroupRules, or None")


def _stop_below(name: str, value: Any) -> None:
    if not _is_name(value, "adaptive") and not (hasattr(value, "before") and hasattr(value, "after") and not isinstance(value, type)):
        _number(
            "a probability, 0 to 1, or 'adaptive', or a stop such as mmspec.drafters.stops.Learned(head)", lambda number: 0 <= number <= 1
        )(name, value)


CHECKS: dict[str, Callable[[str, Any], None]] = {
    "accept": _accept,
    "allow": _item_lists,
    "allowed": _mask,
    "batch_size": _whole(1, MOST_TOKENS),
    "beams": _whole(1, MOST_TOKENS, optional=True),
    "capture": _flag,
    "catalogue": _catalogue,
    "clients": _clients,
    "couple": _called,
    "decoder": _place,
    "device": _device,
    "deny": _item_lists,
    "draft_length": _draft_length,
    "drafter": _drafter,
    "drafter_tokenizer": _tokenizer,
    "drift_budget": _number("a number from 0 on, or None for no bound", lambda value: 0 <= value < inf),
    "folder": _place,
    "guidance": _numbers("a number from 0 on; 1 or None is no guidance", lambda value: 0 <= value < inf),
    "histories": _histories,
    "k": _whole(1, MOST_TOKENS),
    "logprobs": _whole(0, MOST_TOKENS, optional=True),
    "max_length": _whole(2, MOST_TOKENS, optional=True),
    "max_new_tokens": _whole(1, MOST_TOKENS),
    "max_queue": _whole(1, MOST_TOKENS),
    "max_rows": _whole(1, MOST_TOKENS),
    "max_seconds": _number("a number of seconds above 0", lambda value: 0 < value < inf),
    "num_images_per_prompt": _whole(1, 1 << 16),
    "on_sound": _called,
    "on_step": _called,
    "path": _place,
    "piece": _whole(1, MOST_TOKENS),
    "priority": _whole(-MOST_TOKENS, MOST_TOKENS),
    "processor": _tokenizer,
    "processors": _all_called,
    "prompts": _batch,
    "rules": _group_rules,
    "repetition_penalty": _numbers("a number above 0", lambda value: 0 < value < inf),
    "sample_rate": _whole(1, MOST_TOKENS, optional=True),
    "samplers": lambda name, value: None if value is None else _all_called(name, value),
    "short_rows": _whole(0, MOST_TOKENS),
    "stop_below": _stop_below,
    "stops": _all_called,
    "streamer": _streamer,
    "temperature": _numbers("a number, 0 or more, and finite", lambda value: value >= 0 and isfinite(value)),
    "texts": _batch,
    "tokenizer": _tokenizer,
    "top_k": _numbers("a whole number, 0 for none", lambda value: 0 <= value <= MOST_TOKENS and float(value).is_integer()),
    "top_p": _numbers("a number above 0 and at most 1", lambda value: 0 < value <= 1),
    "tree": _tree,
    "unseen": _flag,
    "voice": _voice,
    "width": _whole(1, MOST_TOKENS, optional=True),
    "window": _window,
}
"""Argument name -> its check, called with the name and the value."""
