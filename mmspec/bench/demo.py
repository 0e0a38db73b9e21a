"""The demo: every shipped modality, plain and speculative, as rows for the terminal and one section of the report each."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mmspec.bench.provenance import provenance
from mmspec.bench.report import cards, page
from mmspec.text.pairs import device_of

SECTIONS = {"text": "mmspec.bench.demo_text"}
"""Each module has `work(request)`, how many runs it will make, and `section(request)`."""


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
    same: int  # outputs equal to plain decoding's
    of: int


def work(request: Request) -> int:
    """Runs in all sections together: the length of the progress bar."""
    return sum(import_module(where).work(request) for where in SECTIONS.values())


def run_demo(request: Request) -> dict[str, Section]:
    return {name: import_module(where).section(request) for name, where in SECTIONS.items()}


def report(sections: dict[str, Section], request: Request) -> str:
    """The page of the whole demo."""
    same, of = sum(s.same for s in sections.values()), sum(s.of for s in sections.values())
    figures = [(f"{same} of {of}", "outputs identical to plain decoding, compared token by token")]
    for section in sections.values():
        figures += section.figures
    lead = "Plain and speculative decoding side by side: the drafter guesses, the target checks, and the output stays the target's own."
    body = [cards(figures), *(section.html for section in sections.values())]
    return page("mmspec demo", lead, body, provenance(device_of(request.device)))
