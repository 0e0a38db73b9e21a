"""What tests of jobs share: an input with every kind of mistake, and a folder as bytes."""

import json
from pathlib import Path

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


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but those that hold timing, hidden ones too."""
    files = (file for file in folder.rglob("*") if file.is_file())
    names = {str(file.relative_to(folder)): file for file in files}
    return {name: file.read_bytes() for name, file in sorted(names.items()) if not name.startswith("timing")}


def merged(folder: Path) -> bytes:
    """All the outputs, in order."""
    return b"".join(part.read_bytes() for part in sorted(folder.glob("part-*")))
