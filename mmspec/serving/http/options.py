"""Where the server listens, and its limits."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite

_ORIGIN = re.compile(r"https?://[^\s/,?#@]+", re.IGNORECASE)
KEYS = "MMSPEC_API_KEYS"
"""Environment variable with the accepted API keys, separated by commas."""


@dataclass(frozen=True)
class ServerLimits:
    """Bounds of what is accepted.

    Args:
        max_rows: most requests of a model that run at a time in one generation, and most histories that recommendation requests search
            together.
        max_queue: most requests of a model that wait; others get 429.
        max_tokens: most new tokens of a text request.
        max_inputs: most outputs of a request (prompts times `n`, pictures, histories), and most pictures of a chat.
        max_body: most bytes of a body; larger ones get 413.
        max_seconds: longest recording, and longest sound that is made, in seconds.
        max_connections: most connections. Above it those that wait for a request are closed, the oldest first, and requests get 503;
            `/health` and `/metrics` are always answered.
        max_per_address: the same for the connections of one address.
        timeout: seconds that a request may take, and that its body may take to arrive.

    Raises:
        ValueError: for a limit below 1 or, of seconds, not above 0.
    """

    max_rows: int = 8
    max_queue: int = 256
    max_tokens: int = 1024
    max_inputs: int = 16
    max_body: int = 32 * 2**20
    max_seconds: float = 3600.0
    timeout: float = 300.0
    max_connections: int = 1024
    max_per_address: int = 512

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type is float and not (isfinite(value) and value > 0):
                raise ValueError(f"{each.name} is {value}: give seconds above 0")
            if each.type is int and not 1 <= value < 2**31:
                raise ValueError(f"{each.name} is {value}: give a whole number from 1 to {2**31 - 1}")


@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens and how it ends.

    Args:
        host: address to listen on.
        port: port; 0 for a free one.
        limits: bounds of requests.
        keys: accepted API keys; none means that no key is asked for.
        grace: seconds that running requests may take to finish when the server is stopped; then they are cancelled.
        origins: web pages of these origins, such as "https://example.org", may send requests and read answers in a browser (CORS); "*" for
            all.

    Raises:
        ValueError: for an empty host, a port out of range, a negative `grace`, or what is no origin.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    limits: ServerLimits = ServerLimits()
    keys: tuple[str, ...] = ()
    grace: float = 10.0
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.host.strip():  # which would be every address of the machine
            raise ValueError("host is empty: give an address, such as 127.0.0.1")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: give 0 to 65535; 0 takes a free one")
        if not (isfinite(self.grace) and self.grace >= 0):
            raise ValueError(f"grace is {self.grace}: give seconds, at least 0")
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"origin {origin!r}: give scheme and host, such as https://example.org or http://localhost:3000, or *")


def api_keys() -> tuple[str, ...]:
    """Read the API keys of the environment.

    Returns:
        The keys of `MMSPEC_API_KEYS`; none if it is not set.

    Raises:
        ValueError: if it is set and holds no key.
    """
    given = os.environ.get(KEYS)
    if given is None:
        return ()
    keys = tuple(key.strip() for key in given.split(",") if key.strip())
    if not keys:
        raise ValueError(f"{KEYS} is set but holds no key: give keys separated by commas, or unset it")
    return keys


def client_names(keys: Sequence[str]) -> tuple[str, ...]:
    """Return what the clients of some API keys are called; places of models are kept for each.

    Args:
        keys: the keys.
    """
    return tuple(f"key {number}" for number, _ in enumerate(keys, start=1))
