"""Chats as prompts: through the chat template of a model's tokenizer, or of its processor if it reads pictures."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from torch import Tensor

from mmspec.serving.http.choices import checked_ids
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.models import TextServed
from mmspec.serving.http.schemas.text import ChatMessage
from mmspec.text.inputs.pictures import decoded_picture
from mmspec.text.inputs.vision_inputs import has_template

_DATA = re.compile(r"data:image/[\w.+-]+;base64,", re.ASCII | re.IGNORECASE)


def chat_inputs(served: TextServed, messages: Sequence[ChatMessage], most: int) -> dict[str, Tensor]:
    """Return a chat as a prompt.

    Args:
        served: the model.
        messages: the chat so far.
        most: most pictures.

    Returns:
        What the target takes for one row: `input_ids`, LongTensor [1, P], and what stands for pictures.

    Raises:
        ApiError: 400, without a chat template, for messages that it refuses, and for pictures that cannot be read.
        ValueError: where the model's processor cannot take the pictures.
    """
    pair = served.pair
    if not has_template(pair.processor if pair.sees else pair.tokenizer):
        raise ApiError(400, f"{served.id} has no chat template: use /v1/completions", "model", "no_chat_template")
    pictures = _pictures(served, [url for message in messages for url in message.pictures], most)
    try:
        with served.lock:
            if pair.sees:
                return pair.chat_inputs([message.shown for message in messages], pictures)
            options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
            ids = pair.tokenizer.apply_chat_template([message.plain for message in messages], **options)["input_ids"]
    except TemplateError as error:
        raise ApiError(400, f"the chat template refuses these messages: {error}", "messages") from None
    return checked_ids(served, ids)


def _pictures(served: TextServed, urls: Sequence[str], most: int) -> list[Any]:
    """The pictures of data URLs."""
    if urls and not served.pair.sees:
        raise ApiError(400, f"{served.id} reads text, not pictures: leave image_url parts out", "messages")
    if len(urls) > most:
        raise ApiError(400, f"the chat has {len(urls)} pictures: this server reads at most {most}", "messages")
    return [_picture(url, f"picture {number} of the chat") for number, url in enumerate(urls, start=1)]


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
