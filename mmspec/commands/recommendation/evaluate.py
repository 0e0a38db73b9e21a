"""`mmspec recommend evaluate`: recall, NDCG and coverage of a trained folder beside baselines on the same users."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mmspec.commands import common

EXAMPLES = """Examples:

\b
  mmspec recommend evaluate shop/
  mmspec recommend evaluate shop/ --users 2000 --baselines popularity,co-occurrence
  mmspec recommend evaluate shop/ --repeats --json
"""


def evaluate(
    folder: Annotated[str, typer.Argument(help="What mmspec recommend train wrote into.", metavar="FOLDER")],
    users: Annotated[int | None, common.option(common.WHAT, "Users to test on, drawn; all by default.", metavar="N")] = None,
    baselines: Annotated[
        str, common.option(common.WHAT, "popularity,co-occurrence,sasrec by default; none for none.", metavar="NAMES")
    ] = "popularity,co-occurrence,sasrec",
    repeats: Annotated[bool, common.option(common.WHAT, "Let rankings hold items of the history.", "--repeats")] = False,
    within: Annotated[int, common.option(common.WHAT, "Places behind an item that co-occurrence counts; 5 by default.", metavar="N")] = 5,
    sasrec_steps: Annotated[int, common.option(common.WHAT, "Optimiser steps of SASRec; 3000 by default.", metavar="N")] = 3000,
    sasrec_loss: Annotated[str, common.option(common.WHAT, "softmax (default) or bce, the paper's.", metavar="NAME")] = "softmax",
    held: Annotated[int, common.option(common.WHAT, "Users that SASRec is validated on; 1000 by default.", metavar="N")] = 1000,
    seed: Annotated[int, common.option(common.WHAT, "Seed of SASRec and of the users drawn; 0 by default.", metavar="SEED")] = 0,
    device: common.DEVICE = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Measure the target beside popularity, co-occurrence and SASRec, and write report.json and report.md into the folder."""
    given = dict(locals())
    common.begin(verbose)
    names = () if baselines == "none" else tuple(name.strip() for name in baselines.split(",") if name.strip())
    common.check_counts(given, "held", "within", "sasrec_steps")
    if users is not None and users < 1:
        raise ValueError(f"--users is {users}: test on at least 1 user")
    if "sasrec" not in names:
        common.refuse_unread("is for the baseline sasrec: leave it out", "--sasrec-steps", "--sasrec-loss", "--held")
    from mmspec.recsys.preparation.prepared import PreparedShop
    from mmspec.train.recommender.evaluation import EvaluationSettings
    from mmspec.train.recommender.folder import evaluate_folder
    from mmspec.train.recommender.sasrec import SasRecSettings
    from mmspec.utils.devices import device_of

    sasrec = SasRecSettings(steps=sasrec_steps, loss=sasrec_loss, seed=seed)
    settings = EvaluationSettings(baselines=names, unseen=not repeats, within=within, sasrec=sasrec)
    shop = PreparedShop.read(Path(folder))
    data = shop.data(held, users, seed)
    with redirect_stdout(sys.stderr), common.progress("users", len(data.test) * (1 + len(names))) as done:
        report: Any = evaluate_folder(shop, data, settings, str(device_of(device or "auto")), lambda name, count: done(count, name))
    if as_json:
        common.emit(report)
        return
    table = Table("", *report["table"])
    for measure in next(iter(report["table"].values())):
        table.add_row(measure, *(f"{row[measure]:.4f}" for row in report["table"].values()))
    common.console(False).print(table)
    common.console(False).print(f"{report['users']:,} users; {folder}/report.md", soft_wrap=True)
