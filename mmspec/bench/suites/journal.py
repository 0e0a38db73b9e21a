"""Results on disk while a benchmark runs: one JSON line a turn, added when it is done, so that a stopped run continues."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmspec.utils.files import whole


class Journal:
    """The turns that are done.

    Args:
        output: the file that the whole result will be written to; the lines stand beside it, with the ending .jsonl. None keeps them in
            memory.
        about: what the results depend on. Lines of another `about` are refused.

    Raises:
        ValueError: when the file holds results of other settings, code or machine, or cannot be written.
    """

    def __init__(self, output: Path | None, about: Mapping[str, Any]):
        self.path = None if output is None else output.with_suffix(".jsonl")
        self._done: dict[str, dict[str, Any]] = {}
        if self.path is None:
            return
        if self.path == output:
            raise ValueError(f"--output is {output}: give a name that ends in .json, as lines of {self.path.name} stand beside it")
        head, lines = {"about": json.loads(json.dumps(about))}, self._lines()
        if lines and lines[0] != head:
            other = lines[0].get("about") or {}
            differ = ", ".join(key for key, value in head["about"].items() if other.get(key) != value) or "its fields"
            raise ValueError(f"{self.path} is of another run, with other values of {differ}: choose another --output, or remove it")
        self._done = {_key(line["turn"]): line for line in lines[1:]}
        with whole(self.path) as file:  # without a torn line
            file.writelines(json.dumps(line) + "\n" for line in lines or [head])

    def found(self, turn: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the line of a turn: its key and outcomes; None if it is not done."""
        return self._done.get(_key(turn))

    def add(self, turn: Mapping[str, Any], outcomes: Mapping[str, Any]) -> None:
        """Keep the outcomes of a turn.

        Args:
            turn: what tells it apart from others.
            outcomes: contender -> figures, ready for JSON.
        """
        line = {"turn": dict(turn), "outcomes": dict(outcomes)}
        self._done[_key(turn)] = line
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _lines(self) -> list[dict[str, Any]]:
        """Every whole line. The last one may be torn, if the run was killed while it wrote."""
        if self.path is None or not self.path.is_file():
            return []
        lines = []
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
        return lines


def _key(turn: Mapping[str, Any]) -> str:
    return json.dumps(turn, sort_keys=True)
