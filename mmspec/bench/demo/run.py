"""The demo: every shipped modality, plain and speculative, as rows for the terminal and one section of the report each."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mmspec.bench.report.page import render
from mmspec.loading.text import device_of
from mmspec.utils.provenance import provenance

SECTIONS = {
    "text": "mmspec.bench.demo.text",
    "vision": "mmspec.bench.demo.vision",
    "continuous": "mmspec.bench.demo.continuous",
    "vlm": "mmspec.bench.demo.vlm",
    "speech": "mmspec.bench.demo.speech",
    "recsys": "mmspec.bench.demo.recsys",
}
"""Each module has `there()`, whether its mini ships, `work(request)`, how many runs it will make, and `section(request)`."""


PLAIN = "outputs identical to plain decoding, of those that must be"


@dataclass(frozen=True)
class DemoRequest:
    """What every section is asked for. Call `done` after each run."""

    quick: bool
    seed: int
    device: str
    done: Callable[..., Any] = lambda *args: None


@dataclass(frozen=True)
class Section:
    """One modality's outcome: a row per way of decoding, and what its template shows beside them."""

    title: str
    rows: list[dict[str, Any]]
    candidates: list[dict[str, Any]]  # rows of exact methods that draft: the headline takes the best of them
    view: dict[str, Any]  # for templates/NAME.html
    same: int  # outputs equal to plain decoding's, among those of ways that promise it; or to what `promise` says
    of: int
    promise: str = PLAIN


def installed_sections() -> dict[str, Any]:
    """The sections whose minis are there, by name."""
    found = {name: import_module(where) for name, where in SECTIONS.items()}
    return {name: module for name, module in found.items() if module.there()}


def work(request: DemoRequest) -> int:
    """Runs in all sections together: the length of the progress bar."""
    return sum(module.work(request) for module in installed_sections().values())


def run_demo(request: DemoRequest) -> dict[str, Section]:
    """Run the sections whose minis are installed and return them by name."""
    return {name: module.section(request) for name, module in installed_sections().items()}


def report(sections: dict[str, Section], request: DemoRequest) -> str:
    """Write the page of the whole demo.

    Args:
        sections: outcomes by the names of `SECTIONS`, as `run_demo` returns them.
        request: what they were asked for.

    Returns:
        One HTML file.
    """
    return render(
        "demo.html",
        title="mmspec demo",
        contents={"glance": "At a glance"} | {name: section.title for name, section in sections.items()},
        found=provenance(device_of(request.device)),
        glance=[(section.title, name, section.candidates) for name, section in sections.items()],
        sections=sections,
    )
