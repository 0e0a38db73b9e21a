"""A job's folder: the identity of the job, its finished shards, and atomic writes.

    manifest.json        the job's identity, and its counts once it is done     (the same bytes for every run)
    part-00000.jsonl     a shard's outputs, and other files of the sink         (the same)
    rejects.jsonl        {"index", "file", "line", "reason"}, at the end       (the same)
    shards/00000.json    marker of a finished shard: counts, sizes, rejects     (the same)
    timing/, timing.json seconds of each shard, and the machine                 (differs from run to run)
    .unfinished-0/       files being written by process 0; removed at the end
    .lease-0             locked by process 0 while it works

Every file is written under `.unfinished-R` and then renamed, the marker last. A shard without a marker is written again.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEASE = ".lease-"
"""Begins the names of leases."""
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Stopped(RuntimeError):
    """Raised when a job cannot continue now. Finished shards stay, and the same command resumes the job."""


@dataclass(frozen=True)
class JobFolder:
    """The folder `path`, as written by the process of number `rank`."""

    path: Path
    rank: int | str = 0

    @property
    def _scratch(self) -> Path:
        return self.path / f".unfinished-{self.rank}"

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Make the folder this job's, or resume the job. ValueError, naming the differences, if it holds another job."""
        identity = json.loads(json.dumps(identity))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self._scratch, ignore_errors=True)
            if not (self.path / "manifest.json").exists():
                if strangers := [p.name for p in self.path.iterdir() if not p.name.startswith((".unfinished-", LEASE))]:
                    if not (self.path / "manifest.json").exists():  # another process may have begun the job meanwhile
                        raise ValueError(f"{self.path} holds {min(strangers)} and no manifest.json: give a new or an empty folder")
                else:
                    self._begin({"state": "unfinished", **identity})
        except OSError as error:
            raise stopped_for(error, self.path) or ValueError(
                f"cannot write to {self.path}: {error.strerror}; give a folder that can be written to"
            ) from None
        self._check(identity)

    def _check(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return the manifest. ValueError, naming the differences, if it is another job's."""
        found = self._manifest()
        if differing := list(_differences(found, json.loads(json.dumps(identity)))):
            more = f" (and {len(differing) - 3} more)" if len(differing) > 3 else ""
            raise ValueError(
                f"{self.path} holds another job: {'; '.join(differing[:3])}{more}. Give what it was begun with, or a new output folder"
            )
        return found

    def finished(self, identity: Mapping[str, Any], shards: int, place_of: Callable[[int], dict[str, Any]]) -> dict[str, Any] | None:
        """Find out whether nothing is left to do, without writing anything.

        Args:
            identity: the identity of the job.
            shards: number of shards.
            place_of: as in `close`.

        Returns:
            The manifest of a finished job with all its files, else None.

        Raises:
            ValueError: if the folder holds another job.
        """
        if not (self.path / "manifest.json").exists():
            return None
        found = self._check(identity)
        markers = [self.marker(shard) for shard in range(shards)]
        if any(self.path.glob(".*")) and os.access(self.path, os.W_OK):  # of a process that was killed: to be removed
            return None
        if found.get("state") != "done" or None in markers or not (self.path / "timing.json").exists():
            return None
        try:
            with (self.path / "rejects.jsonl").open(encoding="utf-8") as file:
                lines = (_reject_line(one, place_of) for marker in markers if marker for one in marker["rejects"])
                whole = all(line == next(file, "") for line in lines) and not file.read(1)
        except (OSError, ValueError, RecursionError):
            return None
        return found if whole else None

    def _begin(self, manifest: dict[str, Any]) -> None:
        """Write the manifest unless another process already has."""
        with self.place() as place:
            draft = _written(place / "manifest.json", manifest)
            try:
                os.link(draft, self.path / "manifest.json")
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                os.replace(draft, self.path / "manifest.json")

    def _manifest(self) -> dict[str, Any]:
        try:
            found = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"{self.path / 'manifest.json'} cannot be read: remove {self.path}, or give a new output folder")
        return found

    def marker(self, shard: int) -> dict[str, Any] | None:
        """Return the marker of a finished shard; None if it is not finished or its files have changed."""
        try:
            found = json.loads((self.path / "shards" / f"{shard:05d}.json").read_text(encoding="utf-8"))
            whole = all((self.path / name).stat().st_size == size for name, size in found["files"].items())
        except (OSError, ValueError, RecursionError, KeyError):
            return None
        return found if whole else None

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield an empty folder to write in, removed afterwards. A full disk raises `Stopped`."""
        try:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch.mkdir()
            yield self._scratch
        except OSError as error:
            raise stopped_for(error, self.path) or error from error
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def publish(self, place: Path, shard: int, marker: dict[str, Any], timing: dict[str, Any]) -> None:
        """Rename everything under `place` into the folder, deepest paths first, then mark the shard as finished."""
        found = [file for file in place.rglob("*") if file.is_file()]
        files = sorted(found, key=lambda file: (-len(file.parts), file))
        marker["files"] = {str(file.relative_to(place)): file.stat().st_size for file in files}
        (place / "shards").mkdir()
        (place / "timing").mkdir()
        files.append(_written(place / "timing" / f"{shard:05d}.json", timing))
        files.append(_written(place / "shards" / f"{shard:05d}.json", marker))  # all is on the disk before anything is renamed
        for file in files[:-2]:
            _sync(file)
        for file in files:
            target = self.path / file.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)

    def close(self, shards: int, timing: Mapping[str, Any], place_of: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        """Write rejects, timing and the manifest's end state from the markers of all shards.

        Args:
            shards: number of shards.
            timing: the content of timing.json.
            place_of: maps the index of a record to its file and its place there, from 1.

        Returns:
            The manifest.

        Raises:
            Stopped: if a finished shard is missing.
        """
        counts = {"records": 0, "outputs": 0, "rejects": 0, "shards": shards}
        with self.place() as place:
            with (place / "rejects.jsonl").open("w", encoding="utf-8") as file:
                for shard in range(shards):
                    marker = self.marker(shard)
                    if marker is None:
                        raise Stopped(f"shard {shard} was finished, and its files are gone or changed: start the same command again")
                    file.writelines(_reject_line(one, place_of) for one in marker["rejects"])
                    counts["rejects"] += len(marker["rejects"])
                    for key in ("records", "outputs"):
                        counts[key] += marker[key]
            _sync(place / "rejects.jsonl")
            manifest = self._manifest() | {"state": "done", "counts": counts}
            _written(place / "timing.json", timing)
            _written(place / "manifest.json", manifest)
            for name in ("rejects.jsonl", "timing.json", "manifest.json"):
                os.replace(place / name, self.path / name)
        return manifest

    def sweep(self, free: Callable[[str], bool]) -> None:
        """Remove unfinished files of processes that were killed, and whose numbers no later run had.

        Args:
            free: tells whether a process of a given number is not working on the folder, and removes its lease.
        """
        for left in self.path.glob(".unfinished-*"):
            rank = left.name.removeprefix(".unfinished-")
            if rank == str(self.rank) or free(rank):
                shutil.rmtree(left, ignore_errors=True)
        for lease in self.path.glob(f"{LEASE}*"):
            if (rank := lease.name.removeprefix(LEASE)) != str(self.rank):
                free(rank)

    def timings(self, shards: int) -> Iterable[dict[str, Any]]:
        """Yield the timing of every shard that has one."""
        for shard in range(shards):
            try:
                yield json.loads((self.path / "timing" / f"{shard:05d}.json").read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                continue


def stopped_for(error: OSError, path: Path) -> Stopped | None:
    """Return the `Stopped` for a full disk, None for other errors.

    Args:
        error: the error.
        path: the output folder.

    Returns:
        The exception to raise instead.
    """
    if error.errno not in _FULL:
        return None
    return Stopped(f"no space left on the disk of {path}: free some and start the same command again; finished shards stay")


def _reject_line(reject: Sequence[Any], place_of: Callable[[int], dict[str, Any]]) -> str:
    index, reason = reject
    return json.dumps({"index": index} | place_of(index) | {"reason": reason}, ensure_ascii=False) + "\n"


def _written(path: Path, data: Any) -> Path:
    with path.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False)
        file.write("\n")
    _sync(path)
    return path


def _sync(path: Path) -> None:
    """Flush a file's contents to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _differences(there: Any, here: Any, name: str = "") -> Iterator[str]:
    """ "options.seed is 1 there and 2 here" for every entry of `here`, or of a section both have, that `there` has otherwise."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in here if not name else sorted(there.keys() | here.keys()):
            yield from _differences(there.get(key), here.get(key), f"{name}.{key}" if name else key)
    elif there != here:
        yield f"{name} is {_short(there)} there and {_short(here)} here"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:16]}...{text[-8:]}"
