"""Records of readers of published layouts, and how they read keys of a config."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Hints:
    """What the caller adds to a file: the target, and how to read its layer ids (see `load_drafter`)."""

    target: Any = None
    states: Sequence[int] | None = None
    layer_ids: str | None = None

    def ask(self, key: str, why: str) -> int:
        """Return `key` of the target's text config. ValueError without a target."""
        if self.target is None:
            raise ValueError(f"the file does not say {why}: give target=, the model this drafter is for")
        return getattr(self.target.config.get_text_config(decoder=True), key)


@dataclass(frozen=True)
class Reading:
    """A net of `kind` with `options`; its tensor called `name` is `weights[theirs(name)]`."""

    kind: str
    options: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    theirs: Callable[[str], str] = str


def number(config: Mapping[str, Any], key: str) -> int:
    """Return the positive integer that `config` must hold under `key`."""
    if key not in config:
        raise ValueError(f"config.json has no {key}: it is incomplete")
    if not isinstance(config[key], int) or isinstance(config[key], bool) or config[key] < 1:
        raise ValueError(f"{key} is {config[key]!r} in config.json: a whole number of at least 1 is needed")
    return config[key]


def require_values(config: Mapping[str, Any], **supported: Any) -> None:
    """Raise ValueError unless every key, where given, has its one supported value."""
    for key, value in supported.items():
        if config.get(key, value) not in (value, None):
            raise ValueError(f"{key} {config[key]!r} in config.json is not supported: only {value!r} is")


def prefixed(*pairs: tuple[str, str]) -> Callable[[str], str]:
    """Return a map of names that replaces the first matching prefix by its partner."""

    def theirs(name: str) -> str:
        for ours, other in pairs:
            if name.startswith(ours):
                return other + name.removeprefix(ours)
        return name

    return theirs
