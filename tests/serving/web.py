"""Servers on free ports of the loopback, each in a thread, and OpenAI's client for them."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import openai

from mmspec.loading.text import Pair
from mmspec.run.config import Config, DrafterSection
from mmspec.serving.engine import Engine
from mmspec.serving.http.endpoints.app import create_app
from mmspec.serving.http.loading import ModelNames, load_served
from mmspec.serving.http.models import ServedModels, TextServed
from mmspec.serving.http.options import ServerLimits, ServerOptions
from mmspec.serving.http.server import address_of, bound_socket, make_server

WAIT = 60
STORY = "Once upon a time"
LIMITS = ServerLimits(max_rows=4, max_tokens=64)
MINI_TEXT = Config(drafter=DrafterSection(kind="model"))
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}"
    "{{ message.content }}\n{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)


@dataclass(frozen=True)
class Site:
    """A running server."""

    url: str
    models: ServedModels
    app: Any

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2])), timeout=WAIT)

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=WAIT, **options)


@contextmanager
def running(
    models: ServedModels, limits: ServerLimits | None = None, keys: tuple[str, ...] = (), origins: tuple[str, ...] = ()
) -> Iterator[Site]:
    limits = ServerLimits() if limits is None else limits
    options = ServerOptions(port=0, limits=limits, keys=keys, grace=5, origins=origins)
    app = create_app(models, limits, keys, origins=origins)
    with bound_socket(options) as bound:
        server = make_server(app, options)
        thread = Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield Site(address_of(bound), models, app)
        finally:
            server.should_exit = True
            thread.join(WAIT)
            assert not thread.is_alive()
            assert not models.alive  # the end of the server is that of its models


def text_models(limits: ServerLimits | None = None, chat: bool = True) -> ServedModels:
    """The mini, drafted by its own model."""
    models = load_served(ModelNames(MINI_TEXT), ServerLimits() if limits is None else limits)
    if chat:
        models.text.pair.tokenizer.chat_template = TEMPLATE  # type: ignore[union-attr]
    return models


def shared_text(pair: Pair, limits: ServerLimits) -> ServedModels:
    """Another server of a pair that is loaded already."""
    return ServedModels(
        text=TextServed("mini-text", Engine(pair.target, pair.drafter, max_rows=limits.max_rows, max_queue=limits.max_queue), pair)
    )


def until(true: Callable[[], bool], seconds: float = WAIT) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Gate:
    """A stop function that holds the engine at a row's first token until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = Event(), Event()

    def __call__(self, row: int, values: list[int]) -> bool:
        self.reached.set()
        assert self.opened.wait(WAIT)
        return False


def post(line: socket.socket, path: str, body: dict[str, Any]) -> None:
    """Send a request on a connection, whose answer need not be read."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    line.sendall(head.encode() + content)
