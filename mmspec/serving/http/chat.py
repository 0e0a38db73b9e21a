"""Chats as prompts: through the chat template of a model's tokenizer, or of its processor if it reads pictures."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateError
from torch import Tensor

from mmspec.serving.http.choices import checked_ids
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.models import TextServed
from mmspec.serving.http.schemas.text import ChatMessage
from mmspec.text.inputs.pictures import decoded_picture
from mmspec.text.inputs.vision_inputs import has_template

PIXELS = 100_000_000
"""Most pixels of the pictures of a chat, together: small files unpack to large pictures."""
_DATA = re.compile(r"data:image/[\w.+-]+;base64,", re.ASCII | re.IGNORECASE)


def chat_inputs(served: TextServed, messages: Sequence[ChatMessage], most: int, check: Callable[[], None]) -> dict[str, Tensor]:
    """Return a chat as a prompt.

    Args:
        served: the model.
        messages: the chat so far.
        most: most pictures.
        check: called between steps; raises where the work is to be abandoned.

    Returns:
        What the target takes for one row: `input_ids`, LongTensor [1, P], and what stands for pictures.

    Raises:
        ApiError: 400, without a chat template, for messages that it refuses, and for pictures that cannot be read.
        ValueError: where the model's processor cannot take the pictures.
    """
    pair = served.pair
    if not has_template(pair.processor if pair.sees else pair.tokenizer):
        remedy = "use /v1/completions, or serve a model whose folder has a chat_template.jinja"
        raise ApiError(400, f"{served.id} has no chat template: {remedy}", "model", "no_chat_template")
    room = served.engine.model.max_length
    if room is not None and len(messages) > room:
        message = f"messages has {len(messages)} entries: the model has {room} positions"
        raise ApiError(400, message, "messages", "context_length_exceeded")
    served.check_fits("".join(message.plain["content"] for message in messages), check, "messages")
    pictures = _pictures(served, [url for message in messages for url in message.pictures], most, check)
    try:
        if pair.sees:
            with served.lock:
                return pair.chat_inputs([message.shown for message in messages], pictures)
        text = pair.tokenizer.apply_chat_template([message.plain for message in messages], tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise ApiError(400, f"the chat template refuses these messages: {error}", "messages") from None
    return checked_ids(served, served.ids_of(text, check, "messages", special=False))


def _pictures(served: TextServed, urls: Sequence[str], most: int, check: Callable[[], None]) -> list[Any]:
    """The pictures of data URLs."""
    if urls and not served.pair.sees:
        raise ApiError(400, f"{served.id} reads text, not pictures: leave image_url parts out", "messages")
    if len(urls) > most:
        raise ApiError(400, f"the chat has {len(urls)} pictures: this server reads at most {most}", "messages")
    found: list[Any] = []
    for number, url in enumerate(urls, start=1):
        check()
        found.append(_picture(url, f"picture {number} of the chat"))
        if (pixels := sum(picture.width * picture.height for picture in found)) > PIXELS:
            message = f"the first {number} pictures of the chat have {pixels} pixels: this server reads at most {PIXELS} of a chat"
            raise ApiError(400, message, "messages", "too_large")
    return found


def _picture(url: str, name: str) -> Any:
    head = _DATA.match(url)
    if head is None:
        raise ApiError(400, f"{name} is no data URL: send data:image/png;base64,... (nothing is fetched from other addresses)", "messages")
    try:
        return decoded_picture(base64.b64decode(url[head.end() :], validate=True), name)
    except binascii.Error as error:
        raise ApiError(400, f"{name} is not valid base64: {error}", "messages") from None
    except ValueError as error:
        raise ApiError(400, str(error), "messages") from None
