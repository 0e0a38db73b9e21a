"""Templates of the page, and what stands under every pane."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mmspec.core.rules.base import DISTRIBUTION_EXACT, TOKEN_EXACT
from mmspec.serving.ui.comparison import LiveComparison, LiveGeneration

TIMES = "\N{MULTIPLICATION SIGN}"
_NONE = "\N{EN DASH}"
TEMPLATES = Path(__file__).with_name("templates")


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **values: Any) -> str:
    """Fill in a template of the page.

    Args:
        template: a file name in `templates/`.
        values: what the template reads.

    Returns:
        HTML, with every value escaped.
    """
    return _environment().get_template(template).render(**values)


def style() -> str:
    """Return the page's CSS."""
    return (TEMPLATES / "style.css").read_text(encoding="utf-8")


def board(template: str, comparison: LiveComparison, unit: str, same: "Sameness | None", **values: Any) -> str:
    """Render both panes of a comparison as they are now.

    Args:
        template: the template of the modality, which extends board.html.
        comparison: the comparison.
        unit: plural of what is committed, such as "tokens".
        same: how the outputs compare; None before the end.
        values: what else the template reads.

    Returns:
        HTML.
    """
    plain = comparison.generations[0]
    panes = []
    for generation in comparison.generations:
        beside = plain if comparison.done and generation is not plain else None
        panes.append({"generation": generation, "figures": figures(generation, unit, beside)})
    return render(template, panes=panes, unit=unit, same=same, **values)


def figures(generation: LiveGeneration, unit: str, plain: LiveGeneration | None) -> list[tuple[str, str, str]]:
    """Return the figures under a pane.

    Args:
        generation: the generation.
        unit: plural of what is committed.
        plain: plain decoding, to compare seconds with, or None.

    Returns:
        (label, value, explanation) of each.
    """
    stats, speed = generation.stats, _NONE
    if plain is not None and generation.seconds > 0:
        speed = f"{plain.seconds / generation.seconds:.2f} {TIMES} plain"
    accepted = rejected = _NONE
    if stats.drafted:
        accepted, rejected = f"{stats.accepted / stats.drafted:.0%} of {stats.drafted}", str(stats.rejected)
    exactness = "" if generation.out is None else generation.out.stats.exactness
    return [
        ("target forwards", str(stats.row_calls), "calls of the target model"),
        (f"{unit} per forward", f"{stats.tokens_per_call:.2f}", f"{stats.tokens} {unit} in {stats.row_calls} forwards"),
        ("drafts accepted", accepted, f"{stats.accepted} accepted"),
        ("drafts rejected", rejected, "judged and not accepted; those behind a rejected one are not judged"),
        ("drift", _drift(generation, exactness), "total variation that a lossy rule has spent, summed over positions"),
        ("exactness", exactness or "…", "what the accept rule promises"),
        ("seconds", f"{generation.seconds:.2f}", "of this generation's own rounds, without those of the other"),
        ("speed", speed, "seconds of plain decoding through these; one run on this machine"),
    ]


def _drift(generation: LiveGeneration, exactness: str) -> str:
    if exactness in (TOKEN_EXACT, DISTRIBUTION_EXACT):
        return "0"
    drift = generation.stats.drift if generation.out is None else generation.out.stats.drift
    return ("not measured" if exactness else "…") if drift is None else f"{drift:.3g}"


class Sameness:
    """How the output of a speculative generation compares with plain decoding's.

    Args:
        plain, other: the outputs, value by value.
        exactness: what the accept rule promises.
        unit: plural of the values.

    Attributes:
        equal: True for equal outputs.
        promised: True if they must be equal.
        words: the comparison in words.
    """

    def __init__(self, plain: Sequence[Any], other: Sequence[Any], exactness: str, unit: str):
        self.equal, self.promised = list(plain) == list(other), exactness == TOKEN_EXACT
        if self.equal:
            self.words = f"all {len(plain)} {unit}"
        else:
            first = next((n for n, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other)))
            reason = {
                TOKEN_EXACT: "a token-exact rule promises equality in float32: run mmspec check",
                DISTRIBUTION_EXACT: "a distribution-exact rule draws another sample of the same distribution",
            }.get(exactness, "a lossy rule may differ; see drift")
            self.words = f"the first difference is number {first + 1} of {len(plain)} {unit}; {reason}"
