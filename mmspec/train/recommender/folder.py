"""A prepared folder with its models: training writes them into it, evaluation writes its report."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mmspec.recsys.histories import Data
from mmspec.recsys.preparation.mapped_folder import CATALOGUE
from mmspec.recsys.preparation.prepared import HISTORIES, PreparedShop
from mmspec.recsys.retriever import Retriever
from mmspec.train.beams import draft_coverage
from mmspec.train.recommender.drafter import ItemDrafterSettings, train_item_drafter
from mmspec.train.recommender.evaluation import EvaluationSettings, evaluate_recommender
from mmspec.train.recommender.target import RecommenderSettings, train_recommender
from mmspec.utils.files import whole, whole_folder, write_json
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.weights import own_memory


def train_folder(shop: PreparedShop, settings: RecommenderSettings, drafter: tuple[int, int] | None, held: int, device: str) -> dict:
    """Train a target, a drafter and a retriever, and write them into the folder; a run that was stopped goes on.

    Args:
        shop: the prepared folder.
        settings: of the target.
        drafter: steps of the drafter and users it learns from, or None for no trained drafter.
        held: users to validate on.
        device: where they are trained.

    Returns:
        `parameters`, `validation`, `written` and, with a drafter, `calls`: target calls a user for ten items and the levels that held.
    """
    data, work = shop.data(held, test=1), shop.folder / "work"
    model, facts = train_recommender(data, shop.size, settings, work / "target", device)
    _write(model, shop.folder / "target")
    retriever = Retriever.of(data.catalogue, data.past, 16)
    (shop.folder / "drafters").mkdir(exist_ok=True)
    retriever.save(shop.folder / "drafters" / "retriever.safetensors")
    told: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "validation": facts}
    told["written"] = ["target", "drafters/retriever.safetensors"]
    if drafter is not None:
        asked = ItemDrafterSettings(steps=drafter[0], users=drafter[1], k=min(20, len(data.catalogue)), precision=settings.precision)
        target = model.to(device).requires_grad_(False)
        small = train_item_drafter(target, data, asked, work / "drafter")
        _write(small.cpu(), shop.folder / "drafter")
        k = max(1, min(10, len(data.catalogue) // 4))
        histories = [items[:-1] for items in data.held[:500]]
        told["calls"] = {"k": k, **draft_coverage(target.cpu(), small, data.catalogue, histories, k, 4 * k)}
        told["written"].append("drafter")
    write_json(shop.folder / "training.json", {**told, "settings": asdict(settings), "provenance": provenance(torch.device(device))})
    return told


def _write(model: Any, folder: Path) -> None:
    with whole_folder(folder) as place:
        model.save_pretrained(place)


def evaluate_folder(
    shop: PreparedShop, data: Data, settings: EvaluationSettings, device: str, done: Any = lambda name, users: None
) -> dict:
    """Measure a folder's target beside baselines, and write report.json and report.md into the folder.

    Args:
        shop: the prepared folder.
        data: its split.
        settings: what to measure.
        device: where models run.
        done: called with the name of a ranking and the number of users that were ranked.

    Returns:
        The report: `users`, `table` by name, `settings` and where it was made.

    Raises:
        ValueError: for a folder without a target.
    """
    from transformers import AutoModelForCausalLM

    if not (shop.folder / "target" / "config.json").exists():
        raise ValueError(f"{shop.folder} has no target: make it with mmspec recommend train {shop.folder}")
    model: Any = own_memory(AutoModelForCausalLM.from_pretrained(shop.folder / "target", dtype=torch.float32))
    model = model.to(device).eval()
    files = [shop.folder / "target" / "model.safetensors", shop.folder / CATALOGUE, shop.folder / HISTORIES]
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    mark = f"{digests} {len(data.test)}"
    table = evaluate_recommender(model, data, settings, shop.folder / "work", mark, device, done)
    about = provenance(torch.device(device))
    report = {"users": len(data.test), "items": len(data.catalogue), "table": table, "settings": asdict(settings), "provenance": about}
    write_json(shop.folder / "report.json", report)
    with whole(shop.folder / "report.md") as file:
        file.write(_markdown(shop, report))
    return json.loads(json.dumps(report))


def _markdown(shop: PreparedShop, report: dict[str, Any]) -> str:
    """The report as a page."""
    measures = list(next(iter(report["table"].values())))
    head = ["# Recommendation quality", ""]
    seen = "left out" if report["settings"]["unseen"] else "allowed"
    head += [
        f"Leave-one-out by time: the last item of {report['users']:,} users, {report['items']:,} items; items of the history {seen}.",
        "",
    ]
    rows = ["| | " + " | ".join(measures) + " |", "|---" * (len(measures) + 1) + "|"]
    rows += [f"| {name} | " + " | ".join(f"{row[each]:.4f}" for each in measures) + " |" for name, row in report["table"].items()]
    about = report["provenance"]
    end = ["", f"`{' '.join(about['argv'])}`, {about['date']}, {machine(about)}.", ""]
    return "\n".join(head + rows + end)
