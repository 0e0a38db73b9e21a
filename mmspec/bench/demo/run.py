"""The demo: every shipped modality, plain and speculative, as table rows for the terminal and sections of the report."""

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
"""Each module has `there()`: is its mini installed; `work(request)`: its number of runs; `section(request)`: its results."""


PLAIN = "outputs identical to plain decoding, of those that must be"


@dataclass(frozen=True)
class DemoRequest:
    """Settings of every section. `done` is called after each run."""

    quick: bool
    seed: int
    device: str
    done: Callable[..., Any] = lambda *args: None


@dataclass(frozen=True)
class Section:
    """Results of one modality: a row per method, and the data of its template."""

    title: str
    rows: list[dict[str, Any]]
    candidates: list[dict[str, Any]]  # rows of exact methods that draft: the headline takes the best of them
    view: dict[str, Any]  # for templates/NAME.html
    same: int  # outputs equal to plain decoding's, of methods that guarantee it; or to what `promise` says
    of: int
    promise: str = PLAIN


def installed_sections() -> dict[str, Any]:
    """Return the sections whose minis are installed, by name."""
    found = {name: import_module(where) for name, where in SECTIONS.items()}
    return {name: module for name, module in found.items() if module.there()}


def work(request: DemoRequest) -> int:
    """Return the number of runs in all sections, the length of the progress bar."""
    return sum(module.work(request) for module in installed_sections().values())


def run_demo(request: DemoRequest) -> dict[str, Section]:
    """Run the sections whose minis are installed and return them by name."""
    return {name: module.section(request) for name, module in installed_sections().items()}


def report(sections: dict[str, Section], request: DemoRequest) -> str:
    """Render the page of the whole demo.

    Args:
        sections: results by the names of `SECTIONS`, as `run_demo` returns them.
        request: the settings.

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
