"""Sinks: write one shard's outputs into an empty folder, whose files the job then publishes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Sink(Protocol):
    """Protocol of sinks: writes a shard. Nothing is published before the shard is complete, so a sink need not handle restarts.

    A sink is a frozen dataclass: its repr, with every setting that affects the files, is part of the job's identity.
    """

    @property
    def extension(self) -> str:
        """File extension of the shards, with the dot."""
        ...

    def write(self, outputs: Iterator[tuple[int, Any]], place: Path, part: str) -> None:
        """Write the outputs of one shard.

        Args:
            outputs: (index, output) pairs, in order, taken one by one.
            place: an empty folder.
            part: name of the shard ("part-00000"); `place / (part + extension)` must be written. Other file names must follow from indexes
                or from `part`, so that no two shards share one.
        """
        ...


@dataclass(frozen=True)
class JsonLines:
    """Sink of JSON lines: an output is a dict, written as one line after its "index". A key "index" of the output is kept as it is."""

    extension: ClassVar[str] = ".jsonl"

    def write(self, outputs: Iterator[tuple[int, Any]], place: Path, part: str) -> None:
        """Write one line per output; see `Sink.write`."""
        with (place / f"{part}{self.extension}").open("w", encoding="utf-8") as file:
            for index, row in outputs:
                file.write(_line({"index": index} | row))


@dataclass(frozen=True)
class NumberedFiles:
    """Sink of files: an output is (bytes, dict). The bytes are written to FOLDER/000123.png, named by index, the dict to the shard's JSON
    lines.

    Args:
        suffix: extension of the files, with the dot.
        folder: name of the folder of the files.
    """

    suffix: str = ".png"
    folder: str = "files"
    extension: ClassVar[str] = ".jsonl"

    def write(self, outputs: Iterator[tuple[int, Any]], place: Path, part: str) -> None:
        """Write one file and one line per output; see `Sink.write`."""
        (place / self.folder).mkdir()
        with (place / f"{part}{self.extension}").open("w", encoding="utf-8") as file:
            for index, (content, row) in outputs:
                name = f"{self.folder}/{index:06d}{self.suffix}"
                (place / name).write_bytes(content)
                file.write(_line({"index": index} | row | {"file": name}))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
