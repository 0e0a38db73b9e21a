"""What was learnt about draft lengths, kept across calls in memory and across processes on disk.

One record for each model, drafter and kind of request. On disk it is a small JSON file in `cache_folder()/draft_length`, read on first use
and written when the process exits, completely or not at all; of several processes the last one's file stays. MMSPEC_DRAFT_RECORDS=0 leaves
the disk alone. Records change the speed of a request, never the tokens of token-exact rules.
"""

import atexit
import hashlib
import json
import os
import platform
import warnings
from pathlib import Path
from typing import Any

import torch

from mmspec.core.draft_length.acceptance import LEAST, POSITIONS
from mmspec.core.draft_length.by_match import MatchRecord
from mmspec.utils.cache_folder import cache_folder
from mmspec.utils.files import write_json

_records: dict[str, tuple[MatchRecord, Path | None]] = {}


def match_record(model: Any, drafter: Any, rows: int, sampling: bool) -> MatchRecord:
    """Return the record of a model, a drafter and a kind of request.

    Args:
        model: the target, a transformers model.
        drafter: the drafter; drafters of one class share a record.
        rows: rows of the batch; batches of similar sizes share a record.
        sampling: whether tokens are drawn rather than the most likely ones taken.

    Returns:
        The record, which the request's session reads and writes to.
    """
    weight = next(model.parameters())
    machine = (platform.node(), platform.machine(), torch.get_num_threads(), torch.__version__)
    kind = (type(drafter).__name__, rows.bit_length(), sampling, str(weight.dtype), str(weight.device), *machine)
    text = f"{type(model).__name__} {model.config.to_json_string(use_diff=False)} {kind}"
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    if key not in _records:
        path = _path(key)
        if not any(known is not None for _, known in _records.values()):
            atexit.register(save_records)
        _records[key] = (MatchRecord() if path is None else _read(path), path)
    return _records[key][0]


def save_records() -> None:
    """Write every record that was used to disk. One that cannot be written is left out."""
    for record, path in list(_records.values()):
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"counts": record.counts, "ratios": list(record.ratios.items())})
        except (OSError, ValueError, RecursionError):
            continue


def _path(key: str) -> Path | None:
    if os.environ.get("MMSPEC_DRAFT_RECORDS", "1") == "0":
        return None
    try:
        return cache_folder() / "draft_length" / f"{key}.json"
    except RuntimeError:  # no home folder
        return None


def _read(path: Path) -> MatchRecord:
    """The record of a file; an empty one if there is none, and with a warning if it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        counts = [[[float(n) for n in pair] for pair in row] for row in found["counts"]]
        ratios = {int(columns): [float(ratio) for ratio in seen][-9:] for columns, seen in found["ratios"]}
        shape = len(counts) == len(LEAST) and all(len(row) == POSITIONS and all(len(pair) == 2 for pair in row) for row in counts)
        valid = shape and all(0 <= pair[0] <= pair[1] < 1e6 for row in counts for pair in row)
        if not valid or not all(columns > 1 and seen and all(0 < n < 1e6 for n in seen) for columns, seen in ratios.items()):
            raise ValueError("values out of range")
    except FileNotFoundError:
        return MatchRecord()
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        warnings.warn(f"{path} is ignored: {' '.join(str(error).split())}; delete it to be rid of this line", stacklevel=2)
        return MatchRecord()
    return MatchRecord(counts, ratios)
