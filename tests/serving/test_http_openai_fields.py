"""Every field of OpenAI's own request types is honoured, taken without an effect, or refused by its name."""

from typing import get_args, get_type_hints

import httpx
import openai
import pytest
from openai.types import chat as chats
from openai.types import completion_create_params, image_generate_params
from openai.types.audio import speech_create_params, transcription_create_params
from openai.types.chat import chat_completion_content_part_image_param
from openai.types.chat import completion_create_params as chat_create_params
from pydantic import ValidationError

from mmspec.serving.http.errors import invalid_fields
from mmspec.serving.http.schemas.media import ImageBody, SpeechBody, TranscriptionFields
from mmspec.serving.http.schemas.text import ChatBody, ChatMessage, CompletionBody, ImagePart, ImageUrl, StreamOptions, TextPart
from tests.commands import ROOT
from tests.serving.web import STORY, WAIT

FORM = {"file"}  # of the upload, read apart
TYPES = [
    (chat_create_params.CompletionCreateParamsBase, ChatBody, set()),
    (completion_create_params.CompletionCreateParamsBase, CompletionBody, set()),
    (image_generate_params.ImageGenerateParamsBase, ImageBody, set()),
    (speech_create_params.SpeechCreateParams, SpeechBody, set()),
    (transcription_create_params.TranscriptionCreateParamsBase, TranscriptionFields, FORM),
    (chats.ChatCompletionUserMessageParam, ChatMessage, set()),
    (chats.ChatCompletionAssistantMessageParam, ChatMessage, set()),
    (chats.ChatCompletionSystemMessageParam, ChatMessage, set()),
    (chats.ChatCompletionDeveloperMessageParam, ChatMessage, set()),
    (chats.ChatCompletionStreamOptionsParam, StreamOptions, set()),
    (chats.ChatCompletionContentPartTextParam, TextPart, set()),
    (chats.ChatCompletionContentPartImageParam, ImagePart, set()),
    (chat_completion_content_part_image_param.ImageURL, ImageUrl, set()),
]
BODIES = {ChatBody: {"messages": [{"role": "user", "content": STORY}]}, CompletionBody: {"prompt": STORY}, ImageBody: {"prompt": "a"}}
BODIES |= {SpeechBody: {"input": "one"}, TranscriptionFields: {}}
OTHER = ["of no", {"kind": "known"}]  # a value of no field


@pytest.mark.parametrize(("theirs", "ours", "apart"), TYPES, ids=lambda value: getattr(value, "__name__", ""))
def test_no_field_of_theirs_is_unknown(theirs, ours, apart):
    known = set(ours.model_fields) | ours.HARMLESS | set(ours.NEUTRAL) | apart
    assert set(theirs.__annotations__) <= known
    twice = (set(ours.model_fields) & ours.HARMLESS) | (set(ours.model_fields) & set(ours.NEUTRAL)) | (ours.HARMLESS & set(ours.NEUTRAL))
    assert not twice


def test_the_page_names_what_has_no_effect():
    page = (ROOT / "docs/start/serving.md").read_text(encoding="utf-8")
    for ours in {ours for _, ours, _ in TYPES}:
        for name in (*ours.HARMLESS, *ours.NEUTRAL):
            assert f"`{name}`" in page, name


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_null_and_harmless_fields_leave_a_body_as_it_is(kind):
    body = kind.model_validate(BODIES[kind])
    for name in (*kind.model_fields, *kind.HARMLESS, *kind.NEUTRAL):
        if name not in BODIES[kind]:
            assert kind.model_validate({**BODIES[kind], name: None}) == body, name
    for name in kind.HARMLESS:
        assert kind.model_validate({**BODIES[kind], name: OTHER}) == body, name
    for name, neutral in kind.NEUTRAL.items():
        for value in neutral:
            assert kind.model_validate({**BODIES[kind], name: value}) == body, name
        with pytest.raises(ValueError, match=f"{name} is not supported by this server: leave it out"):
            kind.model_validate({**BODIES[kind], name: OTHER})


def refusal(kind, body):
    """What the server says to a body; None if it takes it."""
    try:
        kind.model_validate(body)
    except ValidationError as error:
        return invalid_fields(error, body).detail
    return None


def test_every_value_that_their_types_list_is_taken_or_refused_by_name():
    """Such as quality="auto": of fields whose type is a list of words."""
    for theirs, ours, _ in TYPES[:4]:
        for name, hint in get_type_hints(theirs).items():
            for value in {each for part in (hint, *get_args(hint)) for each in get_args(part) if isinstance(each, str)}:
                said = refusal(ours, {**BODIES[ours], name: value})
                assert said is None or (name in said and "unknown" not in said)


def test_an_answer_goes_back_as_the_next_turn(client):
    """As the client prints it, with all that clients send of themselves."""
    options = {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k", "parallel_tool_calls": True}
    asked = {"role": "user", "content": STORY, "name": "ann"}
    first = client.chat.completions.create(model="mini-text", messages=[asked], temperature=0, max_tokens=8, **options)
    plain = client.chat.completions.create(model="mini-text", messages=[{"role": "user", "content": STORY}], temperature=0, max_tokens=8)
    assert first.choices[0].message.content == plain.choices[0].message.content
    said = first.choices[0].message
    turns = [asked, said.model_dump(), {"role": "user", "content": "and then?"}]
    second = client.chat.completions.create(model="mini-text", messages=turns, temperature=0, max_tokens=8)
    turns[1] = {"role": "assistant", "content": said.content}
    again = client.chat.completions.create(model="mini-text", messages=turns, temperature=0, max_tokens=8)
    assert second.choices[0].message.content == again.choices[0].message.content
    turns[1]["tool_calls"] = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]
    with pytest.raises(openai.BadRequestError, match="tool_calls is not supported"):
        client.chat.completions.create(model="mini-text", messages=turns)


def test_a_head_of_health(site):
    for path in ("/health", "/metrics", "/v1/models"):
        head, whole = (httpx.request(method, f"{site.url}{path}", timeout=WAIT) for method in ("HEAD", "GET"))
        assert (head.status_code, head.content) == (200, b"")
        assert whole.content
