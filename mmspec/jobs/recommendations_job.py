"""A job of recommendations: Parquet in (user id, history), Parquet out (user id, rank, item, score), by every engine of `mmspec.jobs`.

>>> spec = RecommendationJobSpec(users=Path("users.parquet"), out=Path("out"), k=20)
>>> report = mmspec.jobs.run(partial(make_recommendation_job, spec))
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.jobs import Job, ParquetRows, ParquetTable, Processes
from mmspec.jobs.recommendation_fallback import Fallback, check_fallback
from mmspec.jobs.recommendation_identity import digest, recommendation_job_identity
from mmspec.jobs.recommendation_prompts import RecommendPrompts, prompt_tokenizer
from mmspec.jobs.recommendation_totals import RecommendationTotals
from mmspec.jobs.recommendations import LISTS, Recommend, User
from mmspec.loading.recsys import Recommender, load_recommender
from mmspec.recsys.catalogue import Catalogue
from mmspec.recsys.methods import method_of
from mmspec.recsys.storage.column import Column
from mmspec.run.arguments import check_items
from mmspec.utils.devices import device_of
from mmspec.utils.fingerprints import reader


@dataclass(frozen=True, kw_only=True)
class RecommendationJobSpec:
    """Settings of a recommendation job; plain values that can be sent to other machines."""

    users: Path  # a Parquet file, or a folder of them
    out: Path
    model: str = "mini"
    catalogue: str | None = None
    drafter: str | None = None
    mode: str | None = None  # strict with a drafter, plain without
    k: int = 10
    width: int | None = None
    draft_length: int | str = "auto"  # for exact modes auto is plain search or drafts, whichever is faster on the first users
    unseen: bool = False
    only: str | None = None  # a file with the items that may be recommended
    temperature: float = 1.0
    seed: int = 0
    rows: int = 64
    batch_size: int = 256
    shard_size: int = 4096
    device: str = "auto"
    dtype: str = "float32"
    user_column: str = "user_id"
    history_column: str = "history"
    prompt_column: str | None = None  # texts for the model's tokenizer, in place of histories
    beams: int | None = None
    seen_column: str | None = None  # lists of items in the table: left out,
    deny_column: str | None = None  # left out,
    allow_column: str | None = None  # the only ones to search,
    candidates_column: str | None = None  # ranked instead of a search
    unknown: str = "reject"  # users with an item that the catalogue lacks; or skip the item
    fallback: str = "none"  # for users without any item of the catalogue: popularity, co-occurrence


def make_recommendation_job(asked: RecommendationJobSpec, loaded: Recommender | None = None) -> Job:
    """Return the job. ValueError for missing files and invalid settings, before anything is written.

    Batch size and rows are part of the job's identity: users that are searched together share their matrix products, whose rounding
    changes scores by about 1e-6.
    """
    from mmspec.utils.provenance import provenance

    columns = {name: column for name in LISTS if (column := getattr(asked, f"{name}_column")) is not None}
    check_fallback(asked.fallback)
    _check_prompts(asked)
    source = ParquetRows(asked.users, (asked.user_column, asked.prompt_column or asked.history_column, *columns.values()))
    id_type, id_class = _ids(source, asked)
    if asked.mode is not None:
        method_of(asked.mode)
    drafter = "none" if asked.mode == "plain" else asked.drafter
    loaded = loaded or load_recommender(
        asked.model, asked.catalogue, drafter, asked.dtype, device_of(Processes.here().device(asked.device))
    )
    check_items(asked.k, asked.width, len(loaded.catalogue))
    mode = asked.mode or ("plain" if loaded.drafter is None else "strict")
    mask = None if asked.only is None else read_allowed_items(asked.only, loaded.catalogue)
    if "candidates" in columns and mode != "plain" and asked.mode is not None:
        raise ValueError("candidates are ranked in one forward, not searched for: leave mode out")
    options = {"k": asked.k, "mode": mode, "width": asked.width, "unseen": asked.unseen, "temperature": asked.temperature}
    options |= {} if asked.beams is None else {"beams": asked.beams}
    names = {"user": asked.user_column, "history": asked.history_column, "user_type": id_class}
    settings = (loaded, options | {"allowed": mask, "draft_length": asked.draft_length}, asked.rows, asked.seed)
    prompts: dict[str, Any] = {}
    if asked.prompt_column is None:
        work = Recommend(*settings, **names, columns=columns, unknown=asked.unknown, fallback=_fallback(asked, loaded.catalogue))
    else:
        names["history"] = asked.prompt_column
        tokenizer = prompt_tokenizer(asked.model)
        work = RecommendPrompts(*settings, **names, columns=columns, tokenizer=tokenizer)
        prompts = {"prompts": asked.prompt_column, "tokenizer": reader(tokenizer)}
    work.rehearse()
    length = _length(asked, work, source)
    work = replace(work, options=work.options | {"draft_length": length})
    told = options | {"draft_length": length, "only": None if mask is None else digest(mask)}
    told |= {name: getattr(asked, name) for name in ("seed", "rows", "batch_size", "dtype")}
    told |= {"lists": columns, "unknown": asked.unknown, "fallback": asked.fallback} | prompts
    table = {"user_id": id_type, "rank": "int32", "item": _item_type(loaded.catalogue), "score": "double"}
    sink = ParquetTable(table | ({"source": "string"} if work.fallback is not None else {}))
    return Job(
        source=source,  # pyright: ignore[reportArgumentType] - its unit is the class's
        sink=sink,  # pyright: ignore[reportArgumentType] - so is its extension
        work=work,
        check=work.check,
        measures=work.measures,
        out=asked.out,
        model=recommendation_job_identity(loaded),
        options=told,
        batch_size=asked.batch_size,
        shard_size=asked.shard_size,
        unit="users",
        about=provenance(loaded.device),
    )


def _check_prompts(asked: RecommendationJobSpec) -> None:
    """ValueError for settings that read histories beside a column of prompts."""
    given = {"unseen": asked.unseen, "unknown": asked.unknown != "reject", "fallback": asked.fallback != "none"}
    if asked.prompt_column is not None and (wrong := [name for name, there in given.items() if there]):
        raise ValueError(f"{', '.join(wrong)} reads items of histories, and prompts are texts: leave it out, or name a deny column")


def _fallback(asked: RecommendationJobSpec, catalogue: Catalogue) -> Fallback | None:
    """Counts over all histories of the table, if a fallback is asked for."""
    if asked.fallback == "none":
        return None
    table = ParquetRows(asked.users, (asked.history_column,))
    histories = (record[asked.history_column] for _, record in table.read(lambda index: True))
    return Fallback.counted(histories, catalogue, asked.fallback)


def _ids(source: ParquetRows, asked: RecommendationJobSpec) -> tuple[str, type]:
    """Type of the output's user ids: (Parquet's name, Python's class)."""
    found = source.types[asked.user_column]
    if found in ("string", "large_string", "string_view"):
        return "string", str
    if found.startswith(("int", "uint")):
        return ("uint64" if found == "uint64" else "int64"), int
    raise ValueError(f"column {asked.user_column} of {asked.users} holds {found}: user ids must be whole numbers or text")


def _item_type(catalogue: Catalogue) -> str:
    kinds = catalogue.kinds
    if kinds == {int}:
        return "uint64" if _beyond_int64(catalogue) else "int64"
    if kinds == {str}:
        return "string"
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise ValueError(f"the catalogue's items are of type {names}: a table's must all be whole numbers, or all text")


def _beyond_int64(catalogue: Catalogue) -> bool:
    items: Any = catalogue.items
    if isinstance(items, Column):
        return str(items.values.type) == "uint64" and int(items.values.to_numpy().max()) >= 2**63
    return max(items) >= 2**63


# --- plain or drafted ---------------------------------------------------------------------------------------------------


def _length(asked: RecommendationJobSpec, work: Recommend, source: ParquetRows) -> int:
    """Levels drafted a round. "auto" is decided once and stored in the manifest."""
    levels, loaded = work.recommender.catalogue.levels, work.recommender
    mode = method_of(work.options["mode"])
    if mode.plain or loaded.drafter is None or asked.candidates_column is not None:
        return 0
    if isinstance(asked.draft_length, int):
        return asked.draft_length
    if mode.rule(loaded.catalogue.trie, asked.k, asked.temperature).exactness != TOKEN_EXACT:
        return levels - 1
    committed = _committed(asked.out)
    if committed is None and Processes.here().rank:
        committed = _awaited(asked.out)
    return committed if committed is not None else _fastest(work, source)


def _committed(out: Path) -> int | None:
    """The stored levels of a job that was begun, or None."""
    try:
        found = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["options"]["draft_length"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _awaited(out: Path, patience: float = 600.0) -> int:
    """The levels stored by process 0 of a launch."""
    end = time.monotonic() + patience
    while (found := _committed(out)) is None:
        if time.monotonic() > end:
            raise ValueError(f"process 0 has not begun the job in {out} after {patience:.0f} s: start the same command again")
        time.sleep(0.2)
    return found


def _fastest(work: Recommend, source: ParquetRows) -> int:
    """The cost model's choice on the first users: all levels, or none."""
    from mmspec.recsys.cost import OPENING, CostModel

    users, cost = list(islice((user for user in _users(work, source) if user[1]), work.rows)), CostModel()
    if not users:
        return work.recommender.catalogue.levels - 1
    trial = replace(work, options=work.options | {"draft_length": cost}, totals=RecommendationTotals())
    for _ in range(len(OPENING) + 1):  # it measures both ways, and then chooses
        trial(list(enumerate(users)))
    return cost.choice.levels


def _users(work: Recommend, source: ParquetRows) -> Iterator[User]:
    for _, record in source.read(lambda index: index < 4 * work.rows):
        try:
            yield work.check(record)
        except ValueError:
            continue


# --- what is in stock ---------------------------------------------------------------------------------------------------


def read_allowed_items(path: str, catalogue: Catalogue) -> Tensor:
    """Return the items that a file lists, [items] bool: one a line, or the column "item" of a Parquet file. ValueError for unknown
    items.
    """
    items = _listed(path)
    if catalogue.kinds == {int}:
        items = [int(item) if isinstance(item, str) and item.removeprefix("-").isdecimal() else item for item in items]
    if unknown := [item for item in items if item not in catalogue]:
        raise ValueError(f"{path} names {len(unknown)} items that are not in the catalogue of {len(catalogue)}, such as {unknown[0]!r}")
    if not items:
        raise ValueError(f"{path} names no item: give at least one that may be recommended")
    return catalogue.mask(items)


def _listed(path: str) -> list[Any]:
    if path.endswith(".parquet"):
        return [record["item"] for _, record in ParquetRows(Path(path), ("item",)).read(lambda index: True)]
    try:
        return [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is no UTF-8 text"
        raise ValueError(f"{path} cannot be read ({reason}): give one item a line, or a Parquet file with the column item") from None
