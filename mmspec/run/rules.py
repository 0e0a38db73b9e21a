"""Resolves `accept=` to an accept rule, and the settings of a request to the processors of p and q."""

from collections.abc import Sequence
from typing import Any

from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Pipeline, pipeline
from mmspec.core.rules.base import Accept
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.lenience import Lenience
from mmspec.core.rules.transform import Transformed
from mmspec.run.registry import ACCEPT, build


def rule_of(accept: str | Accept, temperature: float | Sequence[float], top_k: int | None = None, top_p: float | None = None) -> Accept:
    """Return the accept rule for the value of `accept=`.

    "exact" is greedy where nothing is sampled, else coupled, which gives the tokens of plain sampling. Rules that read distributions before
    temperature and truncation receive both; lenience at temperature 0 is a separate rule.

    Args:
        accept: a name of the registry, "exact", or a rule.
        temperature: of the request, one number or one a row.
        top_k, top_p: of the request.

    Returns:
        The rule.

    Raises:
        ValueError: for unknown names, and for lenience if only some of the rows are sampled.
    """
    if accept == "exact":
        return Greedy() if temperature == 0 else Coupled()
    rule = build(accept, {"exact": "", **ACCEPT}, "accept rule") if isinstance(accept, str) else accept
    if isinstance(rule, Transformed):
        return rule.warped_by(pipeline(temperature=temperature, top_k=top_k, top_p=top_p))
    zeros = [each == 0 for each in (temperature if isinstance(temperature, Sequence) else (temperature,))]
    if isinstance(rule, Lenience) and any(zeros):
        if not all(zeros):
            raise ValueError("lenience at temperature 0 is a separate rule: give all rows temperature 0, or none")
        return rule.at_temperature_zero()
    return rule


def reads_raw(rule: Any) -> bool:
    """Return True for rules that at temperature 0 read distributions before temperature."""
    return getattr(rule, "reads_raw", False)


def distributions_for(
    rule: Accept,
    temperature: float | Sequence[float],
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float | None,
    first: Sequence[Processor],
) -> Pipeline:
    """Return the processors of p and q; `first` precede all others.

    Rules that take the argmax leave out processors that do not change it; transforms apply temperature and top-k later.
    """
    if isinstance(rule, Transformed):
        assert rule.warp == pipeline(temperature=temperature, top_k=top_k, top_p=top_p), "make the rule with rule_of"
    if isinstance(rule, Transformed) or (reads_raw(rule) and temperature == 0):
        return pipeline(repetition_penalty=repetition_penalty, first=first)
    return pipeline(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, first=first)
