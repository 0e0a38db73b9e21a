"""What tests of jobs share: an input with every kind of mistake, and a folder as bytes."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

BAD = ["oops", "", "[1]", '{"prompt": 3}']


def write_input(path: Path, good: int = 30) -> Path:
    """JSON lines, with a bad one after every seventh good one."""
    bad = iter(BAD)
    with path.open("w") as file:
        for n in range(good):
            file.write(json.dumps({"prompt": f"p{n}", "id": n}) + "\n")
            if n % 7 == 6:
                file.write(next(bad, "") + "\n")
    return path


def user_table(users: int, first: int = 0) -> pa.Table:
    """Users with histories of 1 to 5 items; of every 100 in turn, one is null, one empty and one has an item that is not there."""
    histories = [[(user * 7 + n) % 1000 for n in range(1 + user % 5)] for user in range(first, first + users)]
    for place in range(users):
        histories[place] = {10: None, 20: [], 30: [3, 5000], 40: [None]}.get((first + place) % 100, histories[place])
    names = [f"u{user}" for user in range(first, first + users)]
    return pa.table({"user_id": names, "note": ["x"] * users, "history": pa.array(histories, pa.list_(pa.int64()))})


def write_users(path: Path, users: int = 200, group: int = 64) -> Path:
    pq.write_table(user_table(users), path, row_group_size=group)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but those that hold timing, hidden ones too."""
    files = (file for file in folder.rglob("*") if file.is_file())
    names = {str(file.relative_to(folder)): file for file in files}
    return {name: file.read_bytes() for name, file in sorted(names.items()) if not name.startswith("timing")}


def merged(folder: Path) -> bytes:
    """All the outputs, in order."""
    return b"".join(part.read_bytes() for part in sorted(folder.glob("part-*")))
