"""Shell completion of option values. All names are plain strings, so that completion and help import no heavy library.

Drafters and accept rules are named in `mmspec.run.registry`. Methods, modes and views are tables of objects in modules that import torch; a
test keeps the lists here equal to them.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from mmspec.minis import NAMES, shipped_drafters
from mmspec.run.registry import ACCEPT, DRAFTERS
from mmspec.utils.recipe_files import recipe_names

IMAGE_METHODS = ("plain", "jacobi", "sjd", "scd", "scd-gumbel", "sjd-pac", "sjd++", "block", "gsd")
IMAGE_METHODS += ("eagle", "assisted", "assisted-jacobi", "lantern", "lantern++", "cool-sd", "vvs", "zipar", "zipar-adaptive", "pjd")
PUBLISHED_METHODS = ("lantern-0.1-1000", "lantern-0.2-1000", "lantern++-5-10", "lantern++-10-5", "lantern++-20-5")
PUBLISHED_METHODS += ("gsd-14", "gsd-25", "gsd-50", "cool-sd-1.1")
CONTINUOUS_METHODS = ("plain", "density", "path", "stepwise", "block", "chain", "aligned", "d-grs", "aligned-block", "cspd-compat")
MODES = ("plain", "strict", "coupled", "sample", "relaxed")
VIEWS = ("drop", "newline", "caption", "own", "pooled", "pruned")
MODALITIES = ("text", "image", "speech", "recommend")

Names = Sequence[str] | Callable[[], Sequence[str]]


def drafter_names() -> list[str]:
    """Return the drafters that commands accept by name: general ones, and those of the minis. Paths are completed by the shell."""
    shipped = [name for mini in ("text", "speech", "vlm", "recsys") for name in shipped_drafters(mini)]
    return list(dict.fromkeys(("none", "model", *DRAFTERS, *shipped, "text", "vlm")))


VALUES: dict[str, Names] = {
    "accept": ("exact", *ACCEPT),
    "compare": (*IMAGE_METHODS, *PUBLISHED_METHODS, *CONTINUOUS_METHODS),
    "device": ("auto", "cpu", "cuda"),
    "draft_length": ("auto", "thompson"),
    "drafter": drafter_names,
    "dtype": ("float32", "bfloat16", "float16", "auto"),
    "engine": ("local", "ray"),
    "form": ("wav", "flac", "ogg"),
    "method": (*IMAGE_METHODS, *PUBLISHED_METHODS, *CONTINUOUS_METHODS),
    "modality": MODALITIES,
    "mode": MODES,
    "model": ("mini", *NAMES),
    "recipe": recipe_names,
    "task": ("transcribe", "translate"),
    "text_format": ("text", "srt", "vtt", "json"),
    "timestamps": ("none", "segment", "word"),
    "tree": ("none", "comb", "cape", "expand", "opt", "dynamic", "beams", "best-first"),
    "view": VIEWS,
    "window": ("auto",),
}
"""Parameter of a command -> what its option completes."""


def with_completion(command: Callable[..., None]) -> Callable[..., None]:
    """Add completion to every parameter of `command` that is in `VALUES`.

    Args:
        command: a Typer command whose parameters are annotated with `typer.Option` or `typer.Argument`.

    Returns:
        `command`.
    """
    for name, hint in get_type_hints(command, include_extras=True).items():
        for info in getattr(hint, "__metadata__", ()):
            if name in VALUES:
                info.autocompletion = _completed(VALUES[name])
    return command


def _completed(names: Names) -> Callable[[str], list[str]]:
    """Return a Typer completion callback. Of several names joined by +, as in --view, the last is completed."""

    def complete(incomplete: str) -> Any:
        known = dict.fromkeys(names() if callable(names) else names)
        before, plus, last = incomplete.rpartition("+")
        found = [name for name in known if name.startswith(incomplete)]
        return found or [f"{before}{plus}{name}" for name in known if plus and name.startswith(last)]

    return complete
