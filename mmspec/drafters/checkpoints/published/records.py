"""What a reader of a published layout is told, what it answers, and how it takes keys out of a config."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Hints:
    """What the caller adds to a file: the target it is for, and how to understand its layer ids (see `load_drafter`)."""

    target: Any = None
    states: Sequence[int] | None = None
    layer_ids: str | None = None

    def ask(self, key: str, why: str) -> int:
        """`key` of the target's text config."""
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
    """A whole number that `config` must hold under `key`."""
    if key not in config:
        raise ValueError(f"config.json has no {key}: it is not whole")
    if not isinstance(config[key], int) or isinstance(config[key], bool) or config[key] < 1:
        raise ValueError(f"{key} is {config[key]!r} in config.json: a whole number of at least 1 is needed")
    return config[key]


def require_values(config: Mapping[str, Any], **supported: Any) -> None:
    """ValueError unless every key, where given, has the one value that is supported."""
    for key, value in supported.items():
        if config.get(key, value) not in (value, None):
            raise ValueError(f"{key} {config[key]!r} in config.json is not supported: only {value!r} is")


def prefixed(*pairs: tuple[str, str]) -> Callable[[str], str]:
    """Names with the first prefix that fits replaced by its partner."""

    def theirs(name: str) -> str:
        for ours, other in pairs:
            if name.startswith(ours):
                return other + name.removeprefix(ours)
        return name

    return theirs
