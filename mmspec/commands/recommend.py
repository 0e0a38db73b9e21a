"""`mmspec recommend`: recommend items to every user of a Parquet file, as a job; or to a few users, printed with item names."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from mmspec.commands import common
from mmspec.utils.places import Writes
from mmspec.utils.screen import spinner

EXAMPLES = """Examples:

\b
  mmspec recommend --user 3 --k 5
  mmspec recommend --history 12,873,44 --compare --json
  mmspec recommend users.parquet out/ --k 20
  mmspec recommend users/ out/ --model ./target --catalogue items.parquet --drafter ./small --unseen
  mmspec recommend users.parquet out/ --only in-stock.txt --engine ray
  mmspec recommend users/ out/ --seen-column seen --unknown skip --fallback popularity
  mmspec recommend run shop/histories.parquet out/ --model shop/ --unseen   # the same command; run may be left out
  mmspec recommend prepare --help                                           # and train, evaluate, assign, append: your own shop
  torchrun --nproc-per-node 8 -m mmspec.cli recommend users.parquet out/
"""
_MODEL = "Target: mini (default), recsys-deep, a folder or a hub name."
_DRAFTER = "none, model (the mini's own, default there), another name in the mini, a folder or a hub name."
_LENGTH = "Levels drafted a round, or auto (default): drafts or plain search, what is faster."
_FILES = common.FILES


def recommend(
    users: Annotated[str | None, typer.Argument(help="A Parquet file of users, or a folder of them.")] = None,
    out: Annotated[str | None, typer.Argument(help="A new folder, or that of the same job, to go on with it."), Writes()] = None,
    history: Annotated[list[str] | None, common.option(_FILES, "Items, oldest first: 12,873,44; repeatable.", metavar="ITEMS")] = None,
    user: Annotated[list[int] | None, common.option(_FILES, "A simulated user of the mini; repeatable.", metavar="N")] = None,
    user_column: Annotated[str, common.option(_FILES, "Its name in the file; user_id by default.", metavar="NAME")] = "user_id",
    history_column: Annotated[str, common.option(_FILES, "Its name in the file; history by default.", metavar="NAME")] = "history",
    prompt_column: Annotated[
        str | None, common.option(_FILES, "Texts for the model's tokenizer, in place of histories.", metavar="NAME")
    ] = None,
    model: Annotated[str, common.option(common.WHAT, _MODEL, metavar="PATH")] = "mini",
    catalogue: Annotated[
        str | None, common.option(common.WHAT, "Items and their paths; the model's own by default.", metavar="FILE")
    ] = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    k: Annotated[int, common.option(common.WHAT, "Number of items per user; 10 by default.", "--k", metavar="K")] = 10,
    only: Annotated[str | None, common.option(common.WHAT, "Recommend only items of this list (one a line).", metavar="FILE")] = None,
    unseen: Annotated[bool, common.option(common.WHAT, "Leave out items of the user's history.", "--unseen")] = False,
    mode: Annotated[
        str | None,
        common.option(common.HOW, "plain, strict (default), ... (mmspec models lists them).", "--method", "--mode", metavar="NAME"),
    ] = None,
    drafter: Annotated[str | None, common.option(common.HOW, _DRAFTER, metavar="NAME")] = None,
    draft_length: Annotated[str, common.option(common.HOW, _LENGTH, metavar="N")] = "auto",
    beams: Annotated[int | None, common.option(common.HOW, "Beams kept a level, K or more; K by default.", metavar="N")] = None,
    width: Annotated[int | None, common.option(common.HOW, "Beams drafted a level; 4 times those kept by default.", metavar="N")] = None,
    compare: Annotated[bool, common.option(common.HOW, "Show plain search beside it.", "--compare")] = False,
    temperature: Annotated[float, common.option(common.DRAWING, "Of modes that draw; 1 by default.", metavar="T")] = 1.0,
    seed: Annotated[int, common.option(common.DRAWING, "Row r draws with SEED + r; 0 by default.", metavar="SEED")] = 0,
    seen_column: Annotated[str | None, common.option("Bulk", "Lists of items to leave out.", metavar="NAME")] = None,
    deny_column: Annotated[str | None, common.option("Bulk", "More lists of items to leave out.", metavar="NAME")] = None,
    allow_column: Annotated[str | None, common.option("Bulk", "Lists of the only items to search.", metavar="NAME")] = None,
    candidates_column: Annotated[str | None, common.option("Bulk", "Lists of items to rank, without a search.", metavar="NAME")] = None,
    unknown: Annotated[
        str, common.option("Bulk", "Items that the catalogue lacks: reject the user (default) or skip them.", metavar="NAME")
    ] = "reject",
    fallback: Annotated[
        str, common.option("Bulk", "Without a known item: none (default), popularity or co-occurrence.", metavar="NAME")
    ] = "none",
    engine: Annotated[str, common.option("Bulk", "local (default; also under torchrun) or ray.", metavar="NAME")] = "local",
    rows: Annotated[int, common.option("Bulk", "Users per search; 64 by default.", metavar="N")] = 64,
    batch_size: Annotated[int, common.option("Bulk", "Users read at once, sorted by length; 256 by default.", metavar="N")] = 256,
    shard_size: Annotated[
        int, common.option("Bulk", "Users a file, the work that an interruption may lose; 4096 by default.", metavar="N")
    ] = 4096,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Recommend items: the list of plain beam search, with levels drafted; for a few users, or for a file of any size."""
    given = dict(locals())
    given |= {
        "device": "auto" if device is None else device,
        "dtype": "float32" if dtype is None else dtype,
        "draft_length": _length(draft_length),
    }
    _check(given)
    common.begin(verbose)
    if users is not None:
        _job(given)
    else:
        _few(given)


def _check(given: dict[str, Any]) -> None:
    few = given["history"] or given["user"]
    if given["users"] is None and not few:
        raise ValueError("no user: give --history ITEMS, --user N, or a Parquet file and a folder")
    common.check_counts(given, "rows", "batch_size", "shard_size")
    if given["users"] is None:
        job = ("--engine", "--batch-size", "--shard-size", "--user-column", "--history-column", "--seen-column", "--deny-column")
        job += ("--prompt-column",)
        job += ("--allow-column", "--candidates-column", "--unknown", "--fallback")
        common.refuse_unread("belongs to a file of users: for a few leave it out", *job)
    if given["mode"] == "plain" or given["drafter"] == "none":
        common.refuse_unread("is for drafting, and plain search drafts nothing: leave it out", "--width")
    if given["mode"] in (None, "plain", "strict"):
        common.refuse_unread("is for modes that draw, and this one takes the best: give --method coupled or sample", "--temperature")
    if given["prompt_column"] is not None:
        wrong = ("--history-column", "--unseen", "--unknown", "--fallback")
        common.refuse_unread("reads histories, and --prompt-column gives texts: leave it out, or name a --deny-column", *wrong)
    if given["users"] is not None:
        if few or given["compare"]:
            raise ValueError("a file of users and --history, --user or --compare do not go together: give one of them")
        if given["out"] is None:
            raise ValueError(f"no folder for the recommendations of {given['users']}: give one behind it")
    if given["engine"] not in ("local", "ray"):
        raise ValueError(f"unknown engine {given['engine']!r}; valid: local, ray")


def _length(text: str) -> int | str:
    if text == "auto" or (text.isascii() and text.isdecimal() and len(text) <= 9):
        return text if text == "auto" else int(text)
    raise ValueError(f"--draft-length is {text!r}: give a number of levels, or auto")


# --- a file of users ----------------------------------------------------------------------------------------------------


def _job(given: dict[str, Any]) -> None:
    from mmspec.jobs import run
    from mmspec.jobs.catalogue_versions import version_of_job
    from mmspec.jobs.recommendations_job import RecommendationJobSpec, make_recommendation_job

    if given["catalogue"] is None and (version := version_of_job(Path(given["out"]), Path(given["model"]))) is not None:
        given["catalogue"] = str(version / "catalogue.parquet")  # items were appended since the job began
        if given["drafter"] == "retriever":
            given["drafter"] = str(version / "retriever.safetensors")
    names = ("model", "catalogue", "drafter", "mode", "k", "width", "draft_length", "unseen", "only", "temperature", "seed", "rows")
    names += (
        "batch_size",
        "shard_size",
        "device",
        "dtype",
        "user_column",
        "history_column",
        "prompt_column",
        "beams",
        "unknown",
        "fallback",
    )
    names += ("seen_column", "deny_column", "allow_column", "candidates_column")
    spec = RecommendationJobSpec(users=Path(given["users"]), out=Path(given["out"]), **{name: given[name] for name in names})
    report = run(partial(make_recommendation_job, spec), engine=given["engine"])
    if report is None:  # process 0 of a launch reports
        return
    common.some_output(report, "users", "row")
    options = json.loads((report.out / "manifest.json").read_text(encoding="utf-8"))["options"]
    found = {key: getattr(report, key) for key in ("records", "outputs", "rejects", "shards", "resumed", "seconds", "rate", "measures")}
    if given["as_json"]:
        common.emit(found | {"out": str(report.out), "model": given["model"], "options": options})
        return
    measures, show = report.measures, common.console(False)
    reasons = f"{report.rejects:,} rejects, reasons in {report.out / 'rejects.jsonl'}" if report.rejects else "no rejects"
    line = f"{report.records:,} users: {report.outputs:,} got {measures.get('recommendations', 0):,.0f} recommendations; {reasons}"
    show.print(line, soft_wrap=True)
    calls = measures.get("row_calls", 0) / max(1, measures.get("users", 0))
    how = f"{options['mode']}, {options['draft_length']} levels drafted a round" if options["draft_length"] else "plain search"
    rate = f", {report.rate:.1f} users/s" if report.rate else ""
    where = f"{report.out}/part-*.parquet ({report.shards} shards, {report.resumed} from before)"
    show.print(f"{how}, {calls:.2f} target calls a user{rate}: {where}", soft_wrap=True)


# --- a few users --------------------------------------------------------------------------------------------------------


def _few(given: dict[str, Any]) -> None:
    from mmspec.jobs.recommendations import Recommend
    from mmspec.jobs.recommendations_job import read_allowed_items
    from mmspec.loading.recsys import items_of, load_recommender
    from mmspec.recsys.methods import method_of
    from mmspec.run.arguments import check_items
    from mmspec.utils.devices import device_of

    if given["mode"] is not None:
        method_of(given["mode"])
    with spinner(f"loading {given['model']}"):
        drafter = "none" if given["mode"] == "plain" and not given["compare"] else given["drafter"]
        loaded = load_recommender(given["model"], given["catalogue"], drafter, given["dtype"], device_of(given["device"]))
    check_items(given["k"], given["width"], len(loaded.catalogue))
    modes = [given["mode"] or ("plain" if loaded.drafter is None else "strict")]
    if given["compare"]:
        if loaded.drafter is None or modes == ["plain"]:
            raise ValueError("--compare shows plain search beside another mode: give a drafter, and no --method plain")
        modes.append("plain")
    requests = [(None, items_of(text, loaded.catalogue, "--history")) for text in given["history"] or ()] + _simulated(given, loaded)
    options = {name: given[name] for name in ("k", "beams", "width", "draft_length", "unseen", "temperature")}
    options["allowed"] = None if given["only"] is None else read_allowed_items(given["only"], loaded.catalogue)
    works = [Recommend(loaded, options | {"mode": mode}, given["rows"], given["seed"]) for mode in modes]
    users = [works[0].check({"user_id": number, "history": history}) for number, (_, history) in enumerate(requests)]
    with common.progress("users", len(works) * len(users)) as done:
        found = [_search(work, users, done) for work in works]
    if given["as_json"]:
        common.emit(_as_json(given, loaded, works, requests, found))
    else:
        _show(loaded, works, requests, found)


def _search(work: Any, users: list[Any], done: Any) -> list[dict[str, list[Any]]]:
    """Return items and scores of every user."""
    found: list[dict[str, list[Any]]] = [{} for _ in users]
    for part in work.parts(users):
        out = work.search([users[place] for place in part], [work.seed + place for place in part])
        for place, items, scores in zip(part, out.items, out.scores, strict=True):
            found[place] = {"items": items, "scores": scores}
        done(len(part))
    return found


def _simulated(given: dict[str, Any], loaded: Any) -> list[tuple[Any, list[Any]]]:
    """Return (next purchase, history) of the mini's simulated users."""
    from mmspec.loading.recsys import MINIS

    if not given["user"]:
        return []
    if given["model"] not in MINIS:
        raise ValueError(f"--user is for the mini, whose users are simulated: for {given['model']} give --history ITEMS")
    if not 0 <= min(given["user"]) <= max(given["user"]) < 2**31:
        raise ValueError(f"--user is {given['user'][0]}: users are numbered from 0 to {2**31 - 1}")
    from mmspec.minis.shop import Shop

    return [(items[-1], items[:-1]) for items in Shop.of().histories(given["user"], seed=2)]


def _as_json(given: dict[str, Any], loaded: Any, works: list[Any], requests: list[Any], found: list[Any]) -> dict[str, Any]:
    name = loaded.catalogue.name
    results = []
    for (after, history), mine in zip(requests, found[0], strict=True):
        row = {"history": history, **mine, "names": [name(item) for item in mine["items"]]}
        results.append(row | ({} if after is None else {"next": after}))
    settings = {key: given[key] for key in ("k", "width", "draft_length", "unseen", "only", "temperature", "seed")}
    about = {"model": loaded.name, "drafter": loaded.drafter_name, "settings": settings, "results": results, **_figures(works[0])}
    if len(works) > 1:
        about["compare"] = _figures(works[1]) | {"same_users": _same(found), "items": [each["items"] for each in found[1]]}
    return about


def _figures(work: Any) -> dict[str, Any]:
    totals = work.totals
    levels = totals.counts["levels"] / max(1, totals.counts["row_calls"])
    counted = {"calls": totals.calls, "levels_per_call": levels, "seconds": totals.seconds, "exactness": totals.exactness}
    return {"mode": work.options["mode"], **counted}


def _same(found: list[Any]) -> int:
    """Return the number of users with the same items in the same order."""
    return sum(mine["items"] == other["items"] for mine, other in zip(*found, strict=True))


def _show(loaded: Any, works: list[Any], requests: list[Any], found: list[Any]) -> None:
    show, name = common.console(False), loaded.catalogue.name
    for number, ((after, history), mine) in enumerate(zip(requests, found[0], strict=True)):
        last = "; ".join(name(item) for item in history[-3:])
        show.print(Text.assemble(("after", "bold"), f" {'... ' if len(history) > 3 else ''}{last}"), soft_wrap=False)
        table = Table("rank", "item", "name", "score", *(["in plain search"] if len(found) > 1 else []))
        for rank, (item, score) in enumerate(zip(mine["items"], mine["scores"], strict=True), 1):
            beside = [_rank(item, found[1][number]["items"])] if len(found) > 1 else []
            bought = " (bought next)" if item == after else ""
            table.add_row(str(rank), str(item), name(item) + bought, f"{score:.4f}", *beside)
        show.print(table if mine["items"] else "nothing is left to recommend")
        if after is not None and after not in mine["items"]:
            show.print(f"bought next: {name(after)}")
    figures = Table("mode", "target calls a user", "levels a call", "seconds", "exactness")
    for work in works:
        row = _figures(work)
        figures.add_row(row["mode"], f"{row['calls']:.2f}", f"{row['levels_per_call']:.2f}", f"{row['seconds']:.2f}", row["exactness"])
    show.print(figures)
    if len(works) > 1:
        show.print(f"the same items in the same order for {_same(found)} of {len(requests)} users")


def _rank(item: Any, items: list[Any]) -> str:
    return str(items.index(item) + 1) if item in items else "-"
