"""Prompts about pictures and clips, in the form of each family's processor."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.text.inputs.clips import Clip, FrameSampling, is_clip, read_clip
from mmspec.text.inputs.pictures import marked, read_picture

MARK = "<image>"
"""Mark of a picture in a prompt, for all models."""
CLIP_MARK = "<video>"
"""Mark of a clip in a prompt, for all models."""
DESCRIBE = "describe the picture."
DESCRIBE_CLIP = "describe the video."
CLIP_FAMILIES = (
    *("glm4v", "glm4v_moe", "glm46v", "internvl", "llava_next_video", "llava_onevision"),
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "smolvlm"),
)
"""Families of `mmspec.models.families.registry.SEES` whose processors take video."""
_ENCLOSED = {  # tokens around a picture or clip that the model was trained with and the processor does not add
    "<|image_pad|>": ("<|vision_start|>", "<|vision_end|>"),
    "<|image|>": ("<|begin_of_image|>", "<|end_of_image|>"),
    "<|video_pad|>": ("<|vision_start|>", "<|vision_end|>"),
    "<|video|>": ("<|begin_of_video|>", "<|end_of_video|>"),
}


@dataclass(frozen=True)
class VisionPrompt:
    """A prompt with pictures (PIL, RGB) and clips. They are placed at its marks; without marks at the beginning, pictures first."""

    prompt: str
    pictures: tuple[Any, ...]
    clips: tuple[Clip, ...] = ()


def read_seen(
    prompt: str | None, files: Sequence[str | Path], called: Sequence[str] | None = None, sampling: FrameSampling | None = None
) -> VisionPrompt:
    """Make a prompt about files of pictures and clips, distinguished by their extensions.

    Args:
        prompt: the question; by default a request to describe the pictures, or else the clips.
        files: paths of pictures and clips.
        called: their names in errors; the paths by default.
        sampling: frames to take of clips.

    Raises:
        ValueError: if a file cannot be read, or the number of marks differs from the number of files.
    """
    pictures, clips = [], []
    for path, name in zip(files, called or map(str, files), strict=True):
        if is_clip(path):
            clips.append(read_clip(path, name, sampling))
        else:
            pictures.append(read_picture(path, name))
    request = VisionPrompt(prompt or default_prompt(files), tuple(pictures), tuple(clips))
    _pieces(request.prompt, request)
    return request


def default_prompt(files: Sequence[str | Path]) -> str:
    """Return the default request about `files`: to describe the video if all are clips, else the picture."""
    return DESCRIBE_CLIP if files and all(map(is_clip, files)) else DESCRIBE


def reads_clips(processor: Any) -> bool:
    """Return True if a model's processor takes video."""
    return getattr(processor, "video_processor", None) is not None


def has_template(processor: Any) -> bool:
    """Return True if prompts can be wrapped in a chat template."""
    return getattr(processor, "chat_template", None) is not None


def process_vision_inputs(processor: Any, requests: Sequence[VisionPrompt], name: str, chat: bool = False) -> dict[str, Any]:
    """Return the inputs that `processor` makes of `requests`, padded to one length. ValueError if pictures, clips and prompts do not
    match.
    """
    seen = {"images": [list(each.pictures) for each in requests]} if any(each.pictures for each in requests) else {}
    clips = [clip for each in requests for clip in each.clips]
    if clips:
        if not reads_clips(processor):
            raise ValueError(f"{name} reads no video: give a model that does ({', '.join(CLIP_FAMILIES)})")
        frames, metadata = zip(*(clip.read(processor.video_processor) for clip in clips), strict=True)
        seen |= {"videos": list(frames), "video_metadata": list(metadata), "do_sample_frames": False}
    texts = [_chatted(processor, each, name) if chat else _written(processor, each) for each in requests]
    return _processed(processor, texts, seen, name, "pictures and clips" if clips else "pictures", chat)


def process_chat(processor: Any, messages: Sequence[Mapping[str, Any]], pictures: Sequence[Any], name: str) -> dict[str, Any]:
    """Return the inputs that a processor makes of a chat.

    Args:
        processor: of a model that reads pictures, with a chat template.
        messages: `role`, and `content` as a list of parts: `{"type": "text", "text": ...}` and `{"type": "image"}`.
        pictures: PIL pictures (RGB), one for each part of type image, in their order.
        name: of the model, in errors.

    Returns:
        The inputs of one row.

    Raises:
        ValueError: where the processor cannot take them.
    """
    text = processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return _processed(processor, [text], {"images": [list(pictures)]} if pictures else {}, name, "pictures", True)


def _processed(processor: Any, texts: list[str], seen: Mapping[str, Any], name: str, what: str, chat: bool) -> dict[str, Any]:
    """What `processor` makes of texts and of what is seen in them, in tensors."""
    opening = getattr(processor.tokenizer, "bos_token", None)
    extra = {"add_special_tokens": False} if chat and opening and texts[0].startswith(opening) else {}
    try:
        found = processor(**seen, text=texts, padding=True, return_tensors="pt", **extra)
    except (ValueError, RuntimeError, IndexError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name} cannot take this prompt with its {what}: {why}") from None
    return {key: value for key, value in found.items() if key != "labels"}


def own_mark(processor: Any, of: str = "image") -> str:
    """Return a family's own mark of a picture, or with `of` "video" of a clip, with the tokens that enclose it."""
    mark = getattr(processor, f"{of}_token", f"<{of}>")
    before, after = _ENCLOSED.get(mark, ("", ""))
    words: Mapping[str, int] = processor.tokenizer.get_vocab()
    return f"{before}{mark}{after}" if before in words and after in words else mark


def _pieces(prompt: str, request: VisionPrompt) -> list[str]:
    """Return the prompt split at its marks, which are pieces too; pictures and clips without marks come first."""
    front: list[str] = []
    marks = [(MARK, len(request.pictures), "picture")]
    marks += [(CLIP_MARK, len(request.clips), "clip")] if request.clips else []
    for mark, count, unit in marks:
        marked(prompt, count, mark, unit)  # ValueError where numbers differ
        front += [] if mark in prompt else [mark] * count
    return [*front, *(piece for piece in re.split(f"({'|'.join(mark for mark, *_ in marks)})", prompt) if piece)]


def _written(processor: Any, request: VisionPrompt) -> str:
    """Return the prompt with the family's own marks."""
    given = request.prompt.replace(getattr(processor, "image_token", MARK), MARK)
    own = {MARK: own_mark(processor)}
    if request.clips:
        given = given.replace(getattr(processor, "video_token", CLIP_MARK), CLIP_MARK)
        own[CLIP_MARK] = own_mark(processor, "video")
    return "".join(own.get(piece, piece) for piece in _pieces(given, request))


def _chatted(processor: Any, request: VisionPrompt, name: str) -> str:
    """Return the prompt as a user's turn of the chat template."""
    if not has_template(processor):
        raise ValueError(f"{name} has no chat template: give --no-chat")
    kinds = {MARK: "image"} | ({CLIP_MARK: "video"} if request.clips else {})
    content: list[dict[str, str]] = []
    for piece in _pieces(request.prompt, request):
        if piece in kinds:
            content.append({"type": kinds[piece]})
        elif piece.strip():
            content.append({"type": "text", "text": piece})
    return processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
