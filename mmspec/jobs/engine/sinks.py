"""Where a job's outputs go: a sink writes one shard's files into an empty place, and the job gives them their names when all are whole."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Sink(Protocol):
    """Writes a shard. It need not care for restarts: nothing it writes is seen before the shard is whole.

    A sink is a frozen dataclass: its repr, with every setting that shows in the files, is part of what the job is.
    """

    @property
    def extension(self) -> str:
        """How the shards' files end, dot included."""
        ...

    def write(self, outputs: Iterator[tuple[int, Any]], place: Path, part: str) -> None:
        """Write (index, output) pairs, taken one by one, as files under the empty folder `place`.

        `part` names the shard ("part-00000"), and `place / (part + extension)` must be among the files. Other names must follow from
        indexes or from `part`, so that no two shards share one.
        """
        ...


@dataclass(frozen=True)
class JsonLines:
    """An output is a dict, and becomes one line behind its "index"; a key of that name in the output stays as it is."""

    extension: ClassVar[str] = ".jsonl"

    def write(self, outputs: Iterator[tuple[int, Any]], place: Path, part: str) -> None:
        with (place / f"{part}{self.extension}").open("w", encoding="utf-8") as file:
            for index, row in outputs:
                file.write(_line({"index": index} | row))


@dataclass(frozen=True)
class NumberedFiles:
    """An output is (bytes, dict): the bytes become FOLDER/000123.png, named by index, and the dict a line of the shard's JSON lines.

    Bytes, and not an object with a `save`, because libraries that write files themselves lose the reason when a disk is full.
    """

    suffix: str = ".png"
    folder: str = "files"
    extension: ClassVar[str] = ".jsonl"

    def write(self, outputs: Iterator[tuple[int, Any]], place: Path, part: str) -> None:
        (place / self.folder).mkdir()
        with (place / f"{part}{self.extension}").open("w", encoding="utf-8") as file:
            for index, (content, row) in outputs:
                name = f"{self.folder}/{index:06d}{self.suffix}"
                (place / name).write_bytes(content)
                file.write(_line({"index": index} | row | {"file": name}))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
