"""The catalogue of a job that was begun before items were appended: the version of its model's folder that the manifest names."""

import json
from pathlib import Path

from mmspec.recsys.catalogue import Catalogue
from mmspec.recsys.preparation.mapped_folder import CATALOGUE, read_catalogue
from mmspec.recsys.preparation.new_items import VERSIONS


def version_of_job(out: Path, model: Path) -> Path | None:
    """Find the earlier version of a model's catalogue that a job was begun with.

    Args:
        out: the job's folder.
        model: the model's folder.

    Returns:
        The version's folder; None for a new job, one of the present catalogue, one whose catalogue is not kept, and one that is finished:
        asked for again, its lists would be those of the earlier catalogue.
    """
    kept = sorted((model / VERSIONS).glob("[0-9]*"))
    if not kept:
        return None
    try:
        manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        wanted = manifest["model"]["catalogue"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    if manifest.get("state") == "done":
        return None
    if read_catalogue(model).digest == wanted:
        return None
    return next((place for place in kept if Catalogue.read(place / CATALOGUE).digest == wanted), None)
