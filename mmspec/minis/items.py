"""Loading and describing mini recsys: a recommender for a simulated shop with its drafters, written by the recipes in recsys/."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from mmspec.utils.files import whole, write_json

FIGURES = "figures.json"
RETRIEVER = "retriever.safetensors"


def load_items(folder: Path) -> dict[str, Any]:
    """Return `target`, `drafters`, `catalogue`, `processor` (the same) and `examples`, histories that were not trained on.

    Raises:
        FileNotFoundError: naming the recipe, if there is no target.
    """
    from mmspec.drafters.checkpoints.load import load_drafter
    from mmspec.minis.weights import llama
    from mmspec.recsys import Catalogue, Retriever

    if not (folder / "target" / "model.safetensors").exists():
        raise FileNotFoundError(f"no target in {folder}: make it with mmspec recipe recsys/train_target.py -- --out {folder}")
    catalogue, target = Catalogue.read(folder / "catalogue.parquet"), llama(folder / "target")
    drafters: dict[str, Any] = {}
    if (folder / "drafter" / "config.json").exists():
        drafters["model"] = llama(folder / "drafter")
    for path in sorted((folder / "drafters").glob("*/config.json")):
        drafters[path.parent.name] = load_drafter(path.parent, target)
    if (folder / "drafters" / RETRIEVER).exists():
        drafters["retriever"] = Retriever.load(folder / "drafters" / RETRIEVER, catalogue)
    examples = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
    return {"target": target, "drafters": drafters, "processor": catalogue, "catalogue": catalogue, "examples": examples}


def write_counts(folder: Path, catalogue: Any, past: Any, test: Any, neighbours: int = 16) -> Any:
    """Write what needs no training: a retriever counted in `past` histories, which is returned, and the first of `test` as examples."""
    from mmspec.recsys import Retriever

    retriever = Retriever.of(catalogue, past, neighbours)
    (folder / "drafters").mkdir(parents=True, exist_ok=True)
    retriever.save(folder / "drafters" / RETRIEVER)
    with whole(folder / "examples.json") as file:
        file.write(json.dumps([list(items[:-1]) for items in test[:64]]) + "\n")
    return retriever


def write_model(folder: Path, model: Any) -> None:
    """Write a transformers model with tied embeddings, its weights as bytes, as `mmspec.minis.weights.llama` reads it."""
    from mmspec.utils.packing import packed
    from mmspec.utils.weights import write_folder

    weights = packed({name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"})
    write_folder(folder, json.loads(model.config.to_json_string()), weights, lambda found: (found / "config.json").exists())


def write_facts(folder: Path, part: str, facts: dict[str, Any]) -> None:
    """Record `facts` about one `part` of the mini in `folder` ("target", or a drafter by name) and this process's command line, and rewrite
    the mini's card.
    """
    path = folder / FIGURES
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = dict(sorted((known | {part: facts | {"recipe": shlex.join(["python", *sys.argv])}}).items()))
    write_json(path, known)
    with whole(folder / "card.md") as file:
        file.write(card(known))


def card(known: dict[str, dict[str, Any]]) -> str:
    """Return the card, from the recorded facts of each part."""
    target, drafters = known.get("target", {}), {name: facts for name, facts in known.items() if name != "target"}
    quality = [f"| {name} | {row['recall@10']:.3f} | {row['NDCG@10']:.3f} |" for name, row in target.get("table", {}).items()]
    settings = next((list(facts["calls"]) for facts in drafters.values()), [])
    calls = [
        f"| {name} | {facts.get('parameters', 0) / 1e6:.2f} M | "
        + " | ".join(f"{facts['calls'][setting]['calls']:.2f}" for setting in settings)
        + f" | {', '.join(f'{share:.2f}' for share in facts['calls'][settings[len(settings) // 2]]['levels'])} |"
        for name, facts in drafters.items()
    ]
    begun = " The model that `--deepen` begins with is made by the command before it in the recipe's `--help`."
    return CARD.format(
        begun=begun if "--deepen" in target.get("recipe", "") else "",
        name=target.get("name", "?"),
        size=f"{target.get('layers', '?')} layers, width {target.get('width', '?')}, {target.get('parameters', 0) / 1e6:.1f} M parameters",
        recipes="\n".join(f"  - `{facts['recipe']}`" for facts in (target, *drafters.values()) if facts),
        steps=target.get("steps", "?"),
        users=target.get("users", "?"),
        quality="\n".join(quality),
        learnt="\n".join(f"- {name}: {facts['learnt']}" for name, facts in drafters.items()),
        held=next((facts["users"] for facts in drafters.values()), "?"),
        head=" | ".join(settings),
        rule="|---" * (len(settings) + 3) + "|",
        calls="\n".join(calls),
    )


CARD = """# mini {name}

A Llama-type recommender ({size}). It reads the semantic ids of the up to 20 items that a customer
bought last, four codes each, and writes that of the next. It exists to show and to test exact recommendation by speculative beam search
on a machine without a GPU.

- Data: none of it is about people. `mmspec/minis/shop.py` makes up a shop of 3,072 items with names, and the histories of any number of
  customers, from seeds: 0 to train, 1 to choose, 2 to test. The examples are the first 64 of seed 2, each without its last item.
- Semantic ids: residual k-means of the items' embeddings, four levels of 64 codes, every item's its own (`catalogue.parquet`).
- Recipes ({steps} steps of 96 histories for the target). `figures.json` holds all they measured.{begun}
{recipes}
- Weights are stored in float16, those of the drafter `model` as bytes, and run in float32. Licence of weights and data: Apache-2.0.

The last item of {users} test histories among the ten best:

| | recall@10 | NDCG@10 |
|---|---|---|
{quality}

Drafters (they only propose: the items are the target's own, whatever they say):

{learnt}

Target calls a user on {held} test histories, where beam search alone makes 4, by how many beams are kept (k) and drafted (width). The
last column, for the middle setting: of the first, second and third level of a draft that were judged, the share whose drafts held all of
the target's beams.

| drafter | parameters | {head} | levels whole |
{rule}
{calls}
"""
