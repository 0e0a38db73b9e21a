"""HTML reports from the Jinja2 templates beside this module. A page is one self-contained file."""

import base64
import io
from functools import lru_cache
from pathlib import Path
from typing import Any

import soundfile
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from PIL import Image
from torch import Tensor

from mmspec.core.rules.base import DISTRIBUTION_EXACT, TOKEN_EXACT
from mmspec.core.stats import Stats
from mmspec.utils.provenance import machine
from mmspec.vision.quality.contact_sheets import picture_bytes

SAME = ("same_text", "same_pictures", "same_sounds", "same_items", "same_in_batch")
"""Keys under which a row counts outputs that equal what they are compared with."""


def render(template: str, **values: Any) -> str:
    """Fill in a template of this package.

    Args:
        template: a file name in `templates/`.
        values: what the template reads; `found` is the provenance, which the page shows.

    Returns:
        The page as HTML.

    Raises:
        jinja2.UndefinedError: a value the template reads is missing.
    """
    return _template(template).render(**values)


def macros(template: str) -> Any:
    """Load a template's macros.

    Args:
        template: a file name in `templates/`.

    Returns:
        An object with a callable attribute for each macro; each returns HTML.
    """
    return _template(template).module


@lru_cache
def _template(name: str) -> Template:
    # every template is HTML or CSS, so everything is escaped; a missing value is an error rather than an empty cell
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"fixed": _fixed, "percent": _percent, "png": _png, "wav": _wav, "machine": machine}
    environment.filters |= {"compared": compared, "common": common_prefix}
    environment.globals |= {"TOKEN_EXACT": TOKEN_EXACT, "SAME_DISTRIBUTION": DISTRIBUTION_EXACT}
    return environment.get_template(name)


def compared(row: dict[str, Any]) -> dict[str, int] | None:
    """Find a row's count of equal outputs, under whichever key of `SAME` it stands.

    Args:
        row: one method's figures.

    Returns:
        {"same", "of"}; None if nothing was compared.
    """
    return next((row[key] for key in SAME if row.get(key) is not None), None)


def phases(seconds: dict[str, float]) -> dict[str, float]:
    """Prepare a time split for a chart.

    Args:
        seconds: seconds by phase, as in `Stats.seconds`.

    Returns:
        The same without "total", with spaces for underscores in the phases' names.
    """
    return {phase.replace("_", " "): spent for phase, spent in seconds.items() if phase != "total"}


def millions(model: Any) -> str:
    """Count a module's parameters.

    Args:
        model: a `torch.nn.Module`.

    Returns:
        Millions of parameters, with one decimal.
    """
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}"


def common_prefix(run: Any, base: Any) -> int:
    """Compare two texts from their beginning.

    Args:
        run: has `text`, and `same`, whether its tokens are the base's.
        base: has `text`.

    Returns:
        How many characters of `base.text` precede the first difference; all of them if `run.same`.
    """
    if run.same:
        return len(base.text)
    pairs = enumerate(zip(run.text, base.text, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(run.text), len(base.text)))


def by_position(stats: Stats) -> list[tuple[int, int]]:
    """Count accepted draft tokens by their position in a round.

    Args:
        stats: of all requests together.

    Returns:
        (accepted, judged) for the first, second, ... draft token.
    """
    passed = [sum(stats.histogram[depth + 1 :]) for depth in range(len(stats.reached))]
    return [(hit, tried) for hit, tried in zip(passed, stats.reached, strict=True) if tried]


def _fixed(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _png(picture: Image.Image) -> str:
    """Return a picture as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(picture_bytes(picture)).decode()}"


def _wav(wave: Tensor, rate: int) -> str:
    """Return samples [T] in [-1, 1] at `rate` per second as a data URI of 16-bit PCM."""
    buffer = io.BytesIO()
    soundfile.write(buffer, wave.numpy(), rate, format="WAV", subtype="PCM_16")
    return f"data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}"
