"""Prompts about pictures, as the processor of each family takes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmspec.text.pictures import marked

MARK = "<image>"
"""Where a picture stands in a prompt, whatever the model's own mark is."""
DESCRIBE = "describe the picture."
_ENCLOSED = {  # where the processor puts nothing around a picture, though the model was trained with it
    "<|image_pad|>": ("<|vision_start|>", "<|vision_end|>"),
    "<|image|>": ("<|begin_of_image|>", "<|end_of_image|>"),
}


@dataclass(frozen=True)
class Seen:
    """A prompt about pictures (PIL, RGB), which stand at its marks, or in front where it has none."""

    prompt: str
    pictures: tuple[Any, ...]


def has_template(processor: Any) -> bool:
    """Whether prompts can be wrapped in a chat template."""
    return getattr(processor, "chat_template", None) is not None


def look(processor: Any, requests: Sequence[Seen], name: str, chat: bool = False) -> dict[str, Any]:
    """What `processor` makes of `requests`, padded to one length. ValueError where pictures and prompts do not go together."""
    texts = [_chatted(processor, each, name) if chat else _written(processor, each) for each in requests]
    opening = getattr(processor.tokenizer, "bos_token", None)
    extra = {"add_special_tokens": False} if chat and opening and texts[0].startswith(opening) else {}
    try:
        found = processor(images=[list(each.pictures) for each in requests], text=texts, padding=True, return_tensors="pt", **extra)
    except (ValueError, RuntimeError, IndexError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name} cannot take this prompt with its pictures: {why}") from None
    return {key: value for key, value in found.items() if key != "labels"}


def own_mark(processor: Any) -> str:
    """A family's own mark of a picture, with what encloses it."""
    mark = getattr(processor, "image_token", MARK)
    before, after = _ENCLOSED.get(mark, ("", ""))
    words: Mapping[str, int] = processor.tokenizer.get_vocab()
    return f"{before}{mark}{after}" if before in words and after in words else mark


def _written(processor: Any, request: Seen) -> str:
    """The prompt with the family's own marks."""
    given = request.prompt.replace(getattr(processor, "image_token", MARK), MARK)
    return own_mark(processor).join(marked(given, len(request.pictures), MARK))


def _chatted(processor: Any, request: Seen, name: str) -> str:
    """The prompt as a user's turn of the chat template."""
    if not has_template(processor):
        raise ValueError(f"{name} has no chat template: give --no-chat")
    content: list[dict[str, str]] = []
    for turn, piece in enumerate(marked(request.prompt, len(request.pictures), MARK)):
        content += [{"type": "image"}] if turn else []
        content += [{"type": "text", "text": piece}] if piece.strip() else []
    return processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
