"""Sources: streams of numbered records, which can be read repeatedly from the start."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn, Protocol

_LONGEST = 16 << 20  # bytes of a line that are still read: memory stays bounded whatever the file holds
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Reject:
    """A record or output that could not be made. The job continues.

    Args:
        reason: written to the rejects file.
    """

    reason: str


@dataclass(frozen=True)
class Facts:
    """What a job needs to know of its input: the number of `records`, rejects included, and a `fingerprint` that is equal for equal
    records.
    """

    records: int  # rejects included
    fingerprint: str  # equal for equal records, wherever they lie


class Source(Protocol):
    """Protocol of sources: a stream of records. A record's index is its place in the input, from 0."""

    @property
    def unit(self) -> str:
        """Name of a place in the input ("line"). Places are counted from 1 in messages."""
        ...

    def facts(self) -> Facts:
        """Read the whole input once, in bounded memory. ValueError for what cannot be read."""
        ...

    def read(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        """Yield (index, record or `Reject`) for every wanted index, in order, in bounded memory.

        Args:
            wanted: called with every index when it is reached; its answer for later indexes may change while the stream waits.
        """
        ...


def place_of(source: Source, index: int) -> dict[str, Any]:
    """Find the place of a record in the input, for people.

    Args:
        source: the source. It may have a method `place` that does the same; others have one place per index.
        index: index of the record, from 0.

    Returns:
        The name of the file, where there is one, and the number of the line or row in it, from 1.
    """
    place = getattr(source, "place", None)
    return {source.unit: index + 1} if place is None else place(index)


@dataclass(frozen=True)
class Lines:
    """Source of UTF-8 files with one record a line: JSON objects if the file is called *.jsonl, else text as {key: line}.

    A record's index is its line number less one; blank lines are rejects.

    Args:
        path: the file.
        key: key of a line of text.

    Raises:
        ValueError: if the file cannot be read.
    """

    path: Path
    key: str = "prompt"
    unit: ClassVar[str] = "line"

    def __post_init__(self) -> None:
        self._open().close()  # a missing file is reported before a model is loaded

    def facts(self) -> Facts:
        """Return the number of lines and the digest of the file."""
        kind = "JSON" if self._holds_json else f"text called {self.key}"
        digest, lines, last = hashlib.sha256(f"{kind}\n".encode()), 0, b"\n"
        with self._open() as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                lines += chunk.count(b"\n")
                last = chunk[-1:]
        return Facts(lines + (last != b"\n"), digest.hexdigest())

    def read(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        """Yield the records of wanted lines; see `Source.read`."""
        with self._open() as file:
            for index, line in enumerate(_bounded(file)):
                if wanted(index):
                    yield index, self._record(index, line)

    def place(self, index: int) -> dict[str, Any]:
        """Find the place of a record in the input, for people.

        Args:
            index: index of the record, from 0.

        Returns:
            "file", the name of the file, and "line", the number of the line in it, from 1.
        """
        return {"file": self.path.name, self.unit: index + 1}

    @property
    def _holds_json(self) -> bool:
        return self.path.suffix in (".jsonl", ".json")

    def _open(self) -> BinaryIO:
        try:
            if self.path.exists() and not self.path.is_file():
                raise OSError(22, "it is a folder or a pipe, and is read more than once")
            return self.path.open("rb")
        except FileNotFoundError:
            raise ValueError(f"input file {self.path} does not exist: give a text file with one record a line, or JSON lines") from None
        except OSError as error:
            raise ValueError(f"input file {self.path} cannot be read: {error.strerror}; give a file that can") from None

    def _record(self, index: int, line: bytes | None) -> Any:
        if line is None:
            return Reject(f"longer than {_LONGEST >> 20} MiB")
        try:
            text = line.decode("utf-8-sig" if index == 0 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            return Reject(f"not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}")
        if not text.strip():
            return Reject("empty")
        return _object(text) if self._holds_json else {self.key: text}


def _bounded(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines of `file`; None for one that is too long, which is passed over piece by piece."""
    while line := file.readline(_LONGEST):
        if len(line) < _LONGEST or line.endswith(b"\n"):
            yield line
            continue
        while (more := file.readline(_CHUNK)) and not more.endswith(b"\n"):
            pass
        yield None


def _object(text: str) -> Any:
    try:
        found = json.loads(text, parse_constant=_no_number)
        if "\\u" in text:  # half a surrogate pair is valid JSON that no file and no tokenizer takes
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Reject("holds half a surrogate pair, which is no character")
    except json.JSONDecodeError as error:
        return Reject(f"not JSON: {error.msg} at character {error.pos + 1}")
    except RecursionError:
        return Reject("not JSON that can be read: nested too deeply")
    except ValueError as error:
        return Reject(f"not JSON: {error}")
    return found if isinstance(found, dict) else Reject(f"wrong type: a JSON {_NAMES[type(found)]}, not an object")


_NAMES = {list: "list", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
