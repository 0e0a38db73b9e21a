"""`mmspec recommend train`: a target and drafters, trained on a prepared folder and written into it."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.commands import common

EXAMPLES = """Examples:

\b
  mmspec recommend train shop/
  mmspec recommend train shop/ --steps 3000 --hidden-size 96 --device cuda
  mmspec recommend train shop/ --drafter none
"""
_TARGET, _DRAFTER = "Target", "Drafter"


def train(
    folder: Annotated[str, typer.Argument(help="What mmspec recommend prepare wrote.", metavar="FOLDER")],
    steps: Annotated[int | None, common.option(_TARGET, "Optimiser steps; by default 40 passes, at most 20,000.", metavar="N")] = None,
    rows: Annotated[int, common.option(_TARGET, "Histories a step; 128 by default.", metavar="N")] = 128,
    lr: Annotated[float, common.option(_TARGET, "Peak learning rate; 0.0015 by default.", metavar="X")] = 1.5e-3,
    weight_decay: Annotated[float, common.option(_TARGET, "Weight decay; 0.3 by default.", metavar="X")] = 0.3,
    hidden_size: Annotated[int, common.option(_TARGET, "Width; 128 by default.", metavar="N")] = 128,
    layers: Annotated[int, common.option(_TARGET, "Layers; 4 by default.", metavar="N")] = 4,
    heads: Annotated[int, common.option(_TARGET, "Attention heads; 4 by default.", metavar="N")] = 4,
    dropout: Annotated[float, common.option(_TARGET, "Dropout of attention; 0.15 by default.", metavar="X")] = 0.15,
    drop: Annotated[float, common.option(_TARGET, "Chance to leave out an item of a history; 0.15 by default.", metavar="X")] = 0.15,
    walks: Annotated[
        float, common.option(_TARGET, "Share of histories that go on by co-occurrence counts, 0 to 1; 0.5 by default.", metavar="X")
    ] = 0.5,
    repeats: Annotated[bool, common.option(_TARGET, "Let validation rank items of the history, too.", "--repeats")] = False,
    held: Annotated[int, common.option(_TARGET, "Users to validate on; 1000 by default.", metavar="N")] = 1000,
    drafter: Annotated[str, common.option(_DRAFTER, "model (default) or none; a retriever is always counted.", metavar="NAME")] = "model",
    drafter_steps: Annotated[int, common.option(_DRAFTER, "Optimiser steps; 1600 by default.", metavar="N")] = 1600,
    drafter_users: Annotated[int, common.option(_DRAFTER, "Users whose best items it learns; 12000 by default.", metavar="N")] = 12000,
    precision: Annotated[str, common.option(common.WHAT, "no (default) or bf16.", metavar="NAME")] = "no",
    seed: Annotated[int, common.option(common.WHAT, "Seed of weights and batches; 0 by default.", metavar="SEED")] = 0,
    device: common.DEVICE = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Train a target on a prepared folder, then a drafter. Both are written into it; a run that was stopped goes on."""
    given = dict(locals())
    common.begin(verbose)
    common.check_counts(given, "rows", "held", "drafter_users")
    common.check_counts(given, "steps", "drafter_steps", most=10**7)
    common.check_counts(given, "hidden_size", most=1 << 14)
    common.check_counts(given, "layers", "heads", most=1 << 8)
    if drafter not in ("model", "none"):
        raise ValueError(f"unknown drafter {drafter!r}; valid: model, none")
    if drafter == "none":
        common.refuse_unread("is for a drafter that is trained: leave it out", "--drafter-steps", "--drafter-users")
    from mmspec.recsys.preparation.prepared import PreparedShop
    from mmspec.train.recommender.folder import train_folder
    from mmspec.train.recommender.target import RecommenderSettings
    from mmspec.utils.devices import device_of

    shop = PreparedShop.read(Path(folder))
    names = ("rows", "lr", "weight_decay", "hidden_size", "layers", "heads", "dropout", "drop", "walks", "precision", "seed")
    chosen: Any = {name: given[name] for name in names} | {"unseen": not repeats}
    chosen["steps"] = min(20_000, max(200, 40 * len(shop.histories) // rows)) if steps is None else steps
    learnt = None if drafter == "none" else (drafter_steps, drafter_users)
    with redirect_stdout(sys.stderr):  # what a training prints as it goes
        facts = train_folder(shop, RecommenderSettings(**chosen), learnt, held, str(device_of(device or "auto")))
    if as_json:
        common.emit({"folder": folder, **facts})
        return
    show = common.console(False)
    show.print(f"target: {facts['parameters'] / 1e6:.2f} M parameters, validation {facts['validation']}", soft_wrap=True)
    show.print(f"written: {', '.join(facts['written'])} in {folder}", soft_wrap=True)
