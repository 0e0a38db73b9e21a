"""What models whose requests are rows of one generation share."""

from collections.abc import Sequence
from typing import Any

from mmspec.core.control import Control, Fixed
from mmspec.core.draft_length.by_rows import ByRows
from mmspec.core.rules.base import TOKEN_EXACT, Accept
from mmspec.run.request import Request


def shared_rule(request: Request) -> Accept:
    """Return the accept rule of an engine.

    Args:
        request: what all requests share.

    Returns:
        The rule; "exact" is that of any temperature.

    Raises:
        ValueError: for rules that are not token-exact.
    """
    rule = request.model_copy(update={"temperature": 1.0}).rule() if request.accept == "exact" else request.rule()
    if rule.exactness != TOKEN_EXACT:
        raise ValueError(
            f"accept rule {type(rule).__name__} is {rule.exactness}, so that outputs would depend on the requests beside them: "
            "choose 'exact', 'greedy', 'coupled' or 'match'"
        )
    return rule


def by_rows(control: Control) -> Control:
    """Return what chooses the draft lengths of a generation whose number of rows changes.

    Args:
        control: chooses those of one number of rows.
    """
    return control if isinstance(control, Fixed) else ByRows(control)


def check_greedy(rule: Accept, temperature: float) -> None:
    """Refuse a temperature that the accept rule cannot draw at.

    Args:
        rule: the engine's accept rule.
        temperature: the request's.

    Raises:
        ValueError: for a temperature other than 0 under a greedy rule.
    """
    if temperature != 0 and getattr(rule, "reads_raw", False):
        raise ValueError(f"temperature is {temperature}, but this engine accepts greedily: leave accept out")


def check_one_row(options: Any) -> None:
    """Refuse options with a value per row.

    Args:
        options: the options of a request.

    Raises:
        ValueError: naming the first option that has several values.
    """
    for name in ("seed", "temperature", "top_k", "top_p", "repetition_penalty", "guidance"):
        value = getattr(options, name, None)
        if isinstance(value, Sequence) and not isinstance(value, str):
            raise ValueError(f"{name} has {len(value)} values, but a request of an engine is one row: give one number")
