"""The demo: every shipped modality, plain and speculative, as rows for the terminal and one section of the report each."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mmspec.bench.provenance import provenance
from mmspec.bench.report import cards, page
from mmspec.text.pairs import device_of

SECTIONS = {
    "text": "mmspec.bench.demo_text",
    "vision": "mmspec.bench.demo_vision",
    "continuous": "mmspec.bench.demo_continuous",
    "vlm": "mmspec.bench.demo_vlm",
    "speech": "mmspec.bench.demo_speech",
    "recsys": "mmspec.bench.demo_recsys",
}
"""Each module has `there()`, whether its mini ships, `work(request)`, how many runs it will make, and `section(request)`."""


PLAIN = "outputs identical to plain decoding, of those that must be"


@dataclass(frozen=True)
class Request:
    """What every section is asked for. Call `done` after each run."""

    quick: bool
    seed: int
    device: str
    done: Callable[..., Any] = lambda *args: None


@dataclass(frozen=True)
class Section:
    """One modality's outcome: a row per way of decoding, and its part of the page."""

    title: str
    figures: list[tuple[str, str]]  # headline: (figure, what it is)
    rows: list[dict[str, Any]]
    html: str
    same: int  # outputs equal to plain decoding's, among those of ways that promise it; or to what `promise` says
    of: int
    promise: str = PLAIN


def shown() -> dict[str, Any]:
    """The sections whose minis are there, by name."""
    found = {name: import_module(where) for name, where in SECTIONS.items()}
    return {name: module for name, module in found.items() if module.there()}


def work(request: Request) -> int:
    """Runs in all sections together: the length of the progress bar."""
    return sum(module.work(request) for module in shown().values())


def run_demo(request: Request) -> dict[str, Section]:
    return {name: module.section(request) for name, module in shown().items()}


def report(sections: dict[str, Section], request: Request) -> str:
    """The page of the whole demo."""
    tokens = [section for section in sections.values() if section.promise == PLAIN]
    figures = [(f"{sum(s.same for s in tokens)} of {sum(s.of for s in tokens)}", f"{PLAIN}, compared token by token")] if tokens else []
    figures += [(f"{s.same} of {s.of}", s.promise) for s in sections.values() if s.promise != PLAIN]
    for section in sections.values():
        figures += section.figures
    lead = "Plain and speculative decoding side by side: the drafter guesses, the target checks, and the output stays the target's own."
    body = [cards(figures), *(section.html for section in sections.values())]
    return page("mmspec demo", lead, body, provenance(device_of(request.device)))
