"""Jobs of `vision/generate_batch.py` with small random models: for this process, forks of it, and workers of Ray."""

import argparse
import importlib.util
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from mmspec.jobs import Job
from mmspec.loading.vision import Loaded
from mmspec.vision.quality.contact_sheets import temperature
from tests.vision.small_nets import guided_model

ROOT = Path(__file__).parents[2]
LINES = [
    {"prompt": "cat", "id": 7},
    {"class": 2},
    {"prompt": "unicorn"},
    {"prompt": "owl", "seed": 41},
    {"prompt": " "},
    {"prompt": "dog", "seed": "x"},
    {"prompt": "dog"},
]
UNSAID = ("top_k", "top_p", "drift_budget", "size", "head_steps", "sigma_out", "draft_steps", "decoder", "captions")


@cache
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_pictures", ROOT / "vision" / "generate_batch.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def write_lines(path: Path, lines: list[dict[str, Any]] = LINES) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def picture_job(prompts: Path, out: Path, loaded: Loaded | None = None, **changes: Any) -> Job:
    """The job of the recipe's tiny model, of `loaded`, or of the option `model`."""
    settings = {"model": "tiny", "method": "scd", "window": 6, "guidance": 2.0, "temperature": 1.0, "seed": 3, "batching": None}
    settings |= {"batch_size": 2, "shard_size": 3, "device": "cpu", "dtype": "float32", "prompts": prompts, "out": out}
    settings = dict.fromkeys(UNSAID) | settings | changes
    return recipe().make_job(argparse.Namespace(**settings), loaded or (recipe().tiny() if settings["model"] == "tiny" else None))


@cache
def assisted() -> Loaded:
    """A model with a trained net and a smaller model, whose codes are shown as colours."""
    model = guided_model()
    model.assistant.labels = model.labels
    model.usual_codes = (0,) * model.raster.length  # fixed: counts of a job do not depend on what this process has seen before
    model.to_pictures = lambda codes: [temperature(each, model.raster.codes) for each in codes]
    return Loaded("assisted", model)
