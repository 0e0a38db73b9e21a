"""`mmspec recommend prepare`: a table of events and a table of items as a recommender's training data."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.commands import common
from mmspec.utils.places import Writes

EXAMPLES = """Examples:

\b
  mmspec recommend prepare interactions.parquet items.parquet shop/
  mmspec recommend prepare events/ items.parquet shop/ --user customer --time bought_at --from text --text-column title
  mmspec recommend prepare interactions.parquet items.parquet shop/ --method rqvae --levels 3 --size 256 --core 1
  mmspec recommend prepare interactions.parquet items.parquet shop/ --from events    # items of which only the ids are known
"""
_WHO = {"users": "users", "items": "items with events"}
_IDS, _COLUMNS = "Semantic ids", "Columns"


def prepare(
    interactions: Annotated[str, typer.Argument(help="Events: a Parquet file, or a folder of them.", metavar="EVENTS")],
    items: Annotated[str, typer.Argument(help="Items: a Parquet file, or a folder of them.", metavar="ITEMS")],
    out: Annotated[
        str, typer.Argument(help="A new folder, or that of the same tables, to go on with it.", metavar="FOLDER"), Writes(keeps=True)
    ],
    user: Annotated[str, common.option(_COLUMNS, "User of an event; user by default.", metavar="NAME")] = "user",
    item: Annotated[str, common.option(_COLUMNS, "Item of an event; item by default.", metavar="NAME")] = "item",
    time: Annotated[str, common.option(_COLUMNS, "Time of an event; time by default.", metavar="NAME")] = "time",
    item_column: Annotated[str, common.option(_COLUMNS, "Id of an item; item by default.", metavar="NAME")] = "item",
    name_column: Annotated[str, common.option(_COLUMNS, "Name of an item, for display; name by default.", metavar="NAME")] = "name",
    embedding_column: Annotated[str, common.option(_COLUMNS, "Embedding of an item; embedding by default.", metavar="NAME")] = "embedding",
    text_column: Annotated[str, common.option(_COLUMNS, "Text of an item; text by default.", metavar="NAME")] = "text",
    codes_column: Annotated[str, common.option(_COLUMNS, "Ready semantic id of an item; codes by default.", metavar="NAME")] = "codes",
    source: Annotated[
        str | None,
        common.option(
            _IDS,
            "codes, embedding or text, the first there is; events; or one and events: text+events.",
            "--from",
            metavar="NAME",
        ),
    ] = None,
    method: Annotated[str, common.option(_IDS, "kmeans (default) or rqvae.", "--method", metavar="NAME")] = "kmeans",
    levels: Annotated[int, common.option(_IDS, "Codes an item; 4 by default.", metavar="N")] = 4,
    size: Annotated[int, common.option(_IDS, "Codes a level; 256 by default.", metavar="N")] = 256,
    last: Annotated[
        str, common.option(_IDS, "count (default), nearest or plain: how the last code keeps items apart.", metavar="NAME")
    ] = "count",
    text_width: Annotated[int, common.option(_IDS, "Numbers of a text's embedding; 128 by default.", metavar="N")] = 128,
    event_width: Annotated[int, common.option(_IDS, "Numbers of an embedding from events; 64 by default.", metavar="N")] = 64,
    seed: Annotated[int, common.option(_IDS, "Seed of the quantiser; 0 by default.", metavar="SEED")] = 0,
    core: Annotated[int, common.option(common.WHAT, "Fewest events of users and items (k-core); 5 by default.", metavar="K")] = 5,
    most: Annotated[int, common.option(common.WHAT, "Newest items of a history that a model reads; 20 by default.", metavar="N")] = 20,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Prepare a folder from events (user, item, time) and items: histories, and semantic ids of the items."""
    given = dict(locals())
    common.begin(verbose)
    common.check_counts(given, "levels", most=64)  # each is a call of the target
    common.check_counts(given, "size", most=1 << 16)  # a codebook of so many entries is fitted for every level
    common.check_counts(given, "text_width", "event_width", most=1 << 13)
    common.check_counts(given, "most", most=1 << 12)
    from mmspec.recsys.preparation.items import ItemColumns
    from mmspec.recsys.preparation.prepared import PreparationSettings, prepare_shop
    from mmspec.recsys.preparation.quantiser import QuantiserSettings

    if source == "codes":
        common.refuse_unread(
            "is for semantic ids that are learnt: leave it out", "--method", "--levels", "--last", "--text-width", "--event-width", "--seed"
        )
    ids: Any = {"method": method, "levels": levels, "size": size, "last": last, "text_width": text_width, "event_width": event_width}
    columns = ItemColumns(item=item_column, embedding=embedding_column, text=text_column, codes=codes_column, name=name_column)
    settings = PreparationSettings(
        interactions=Path(interactions),
        items=Path(items),
        core=core,
        user=user,
        item=item,
        time=time,
        columns=columns,
        source=source,
        ids=QuantiserSettings(**ids, seed=seed),
        most=most,
    )
    with common.progress("preparing", 3) as done:
        found = prepare_shop(settings, Path(out), lambda stage: done(0 if stage == "reading" else 1, stage))
    if as_json:
        common.emit({"folder": out, **found.summary})
        return
    counts, ids = found.summary["counts"], found.summary["ids"]
    show = common.console(False)
    show.print(f"{counts['users']:,} users with {counts['events']:,} events, {counts['items']:,} items", soft_wrap=True)
    for line in _left_out(found.summary):
        show.print(line, soft_wrap=True)
    shared = (
        f"{ids['items'] - ids['paths']:,} items share a path with another" if ids["paths"] < ids["items"] else "every item its own path"
    )
    what = f"semantic ids: {found.catalogue.levels} codes of {found.size}"
    show.print(f"{what}, from {found.summary['source']}; {shared}", soft_wrap=True)
    if alone := counts.get("items beside no other"):
        show.print(f"{alone:,} items are beside no other in the training events, which say nothing of their ids", soft_wrap=True)


def _left_out(summary: dict[str, Any]) -> Iterator[str]:
    """Say what was left out, by which setting, and what would keep it. Earlier folders counted events alone."""
    full: dict[str, dict[str, Any]] = summary.get("left out in full", {})
    everyone = {who: summary["counts"].get(name, 0) + sum(one[who] for one in full.values()) for who, name in _WHO.items()}
    for reason, count in summary["left out"].items():
        one = full.get(reason, {})
        gone = [f"{one[who]:,} of {everyone[who]:,} {who} ({one[who] / everyone[who]:.0%})" for who in _WHO if one.get(who)]
        lost = f"; {' and '.join(gone)} have no event left" if gone else ""
        lists = ", so these users get no list" if one.get("users") else ""
        yield f"left out: {count:,} events {reason}{lost}{lists}{'; ' + one['remedy'] if one.get('remedy') else ''}"
