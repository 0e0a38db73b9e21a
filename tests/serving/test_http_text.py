"""`mmspec serve`, text: OpenAI's client gets what `mmspec.text.generate` gives."""

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmspec
from mmspec.serving.http.choices import StopCutter
from tests.serving.web import LIMITS, STORY, running, shared_text, text_models

PROMPT = "Question: Ann has 3 apples and buys 4 more. How many apples does she have?\nAnswer:"


def alone(site, prompt, special=True, **options):
    """The text, and the number of tokens, of `mmspec.text.generate`."""
    pair = site.models.text.pair
    inputs = pair.tokenizer([prompt], return_tensors="pt", add_special_tokens=special)
    out = mmspec.text.generate(pair.target, {"input_ids": inputs["input_ids"]}, pair.drafter, **options)
    ids = out.tokens[0, : out.lengths[0]].tolist()
    return pair.decode(ids), len(ids)


def test_completions_are_those_of_the_call(site, client):
    for prompt in (PROMPT, STORY):
        out = client.completions.create(model="mini-text", prompt=prompt, max_tokens=32, temperature=0)
        text, count = alone(site, prompt, max_new_tokens=32)
        assert out.choices[0].text == text
        assert out.choices[0].finish_reason == ("length" if count == 32 else "stop")
        assert (out.model, out.object, out.usage.completion_tokens) == ("mini-text", "text_completion", count)
        assert out.usage.total_tokens == out.usage.prompt_tokens + count
        assert out.mmspec["exactness"] == "token-exact"


def test_seeds_several_outputs_and_several_prompts(site, client):
    options = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 24}
    out = client.completions.create(model="mini-text", prompt=[STORY, PROMPT], n=2, seed=7, **options)
    expected = [
        alone(site, prompt, seed=seed, temperature=0.9, top_p=0.95, max_new_tokens=24)[0] for prompt in (STORY, PROMPT) for seed in (7, 8)
    ]
    assert [choice.text for choice in out.choices] == expected
    assert [choice.index for choice in out.choices] == [0, 1, 2, 3]
    again = client.completions.create(model="mini-text", prompt=STORY, **options)  # a seed is drawn and told
    assert again.choices[0].text == alone(site, STORY, seed=again.mmspec["seed"], temperature=0.9, top_p=0.95, max_new_tokens=24)[0]
    extra = {"top_k": 5, "repetition_penalty": 1.2}
    more = client.completions.create(model="mini-text", prompt=STORY, seed=3, temperature=0.7, max_tokens=16, extra_body=extra)
    assert more.choices[0].text == alone(site, STORY, seed=3, temperature=0.7, max_new_tokens=16, **extra)[0]


def test_prompts_of_token_ids(site, client):
    ids = site.models.text.pair.tokenizer(STORY)["input_ids"]
    for prompt, count in ((ids, 1), ([ids, ids[:3]], 2)):
        out = client.completions.create(model="mini-text", prompt=prompt, temperature=0)
        assert len(out.choices) == count
        assert out.choices[0].text == alone(site, STORY, max_new_tokens=16)[0]


def test_streams_give_the_same_text(site, client):
    for seed in (1, 2):
        options = {"model": "mini-text", "prompt": [STORY, PROMPT], "seed": seed, "temperature": 0.8, "max_tokens": 32}
        whole = client.completions.create(**options)
        texts, reasons, usage = ["", ""], [None, None], None
        for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                assert reasons[choice.index] is None
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason
        assert texts == [choice.text for choice in whole.choices]
        assert reasons == [choice.finish_reason for choice in whole.choices]
        assert usage == whole.usage


def test_an_output_ends_before_a_stop_string(site, client):
    text, _ = alone(site, STORY, max_new_tokens=48)
    word = text[20:26]
    expected = text[: text.index(word)]
    options = {"model": "mini-text", "prompt": STORY, "temperature": 0, "max_tokens": 48, "stop": ["never in it", word]}
    out = client.completions.create(**options)
    assert (out.choices[0].text, out.choices[0].finish_reason) == (expected, "stop")
    chunks = list(client.completions.create(**options, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_beginning_of_a_stop_string_is_held_back():
    cutter = StopCutter(("END", "ENOUGH"))
    assert [cutter.add(piece) for piece in ("a E", "N", "x E", "N", "OU", "GH b", "c")] == ["a ", "", "ENx ", "", "", "", ""]
    assert (cutter.rest(), cutter.found) == ("", True)
    cutter = StopCutter(("END",))
    assert cutter.add("the EN") + cutter.rest() == "the EN"


@settings(max_examples=200, deadline=None)
@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.lists(st.integers(1, 4), max_size=12))
def test_stop_strings_do_not_depend_on_pieces(text, stops, sizes):
    def cut(pieces):
        cutter = StopCutter(stops)
        return "".join([cutter.add(piece) for piece in pieces]) + cutter.rest()

    pieces, rest = [], text
    for size in sizes:
        pieces, rest = [*pieces, rest[:size]], rest[size:]
    ends = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    assert cut([*pieces, rest]) == cut(text) == (text[: min(ends)[1]] if ends else text)


def test_chats_go_through_the_template(site, client):
    messages = [{"role": "user", "content": "Question: Tom has 2 pens and finds 5. How many pens does he have?"}]
    text, count = alone(site, messages[0]["content"] + "\nAnswer:", special=False, max_new_tokens=24)
    out = client.chat.completions.create(model="mini-text", messages=messages, temperature=0, max_tokens=24)
    assert out.choices[0].message.content == text
    assert out.choices[0].message.role == "assistant"
    assert out.usage.completion_tokens == count
    parts = [{"role": "user", "content": [{"type": "text", "text": messages[0]["content"]}]}]
    again = client.chat.completions.create(model="mini-text", messages=parts, temperature=0, max_completion_tokens=24)
    assert again.choices[0].message.content == text
    chunks = list(client.chat.completions.create(model="mini-text", messages=messages, temperature=0, max_tokens=24, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == out.choices[0].finish_reason
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    with pytest.raises(openai.BadRequestError, match="no system messages"):
        client.chat.completions.create(model="mini-text", messages=[{"role": "system", "content": "be brief"}])


def test_a_chat_without_a_length_ends_where_the_server_says(client):
    out = client.chat.completions.create(model="mini-text", messages=[{"role": "user", "content": STORY}], temperature=1.5, seed=1)
    assert out.usage.completion_tokens <= 64


def test_models_are_listed(client):
    assert [(each.id, each.owned_by) for each in client.models.list()] == [("mini-text", "mmspec")]
    assert client.models.retrieve("mini-text").kind == "text"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("other")


WRONG = {
    "unknown field 'sed'": {"extra_body": {"sed": 1}},
    "logprobs is 6: give a number of at most 5": {"logprobs": 6},
    "unknown field 'prompt_logprobs'": {"extra_body": {"prompt_logprobs": 1}},
    "frequency_penalty is not supported": {"frequency_penalty": 0.5},
    "echo is not supported": {"echo": True},
    "best_of is not supported": {"best_of": 3},
    "stop has 17 entries: give at most 16": {"stop": ["a"] * 17},
    "prompt.1 is null: give a text": {"prompt": ["a", None]},
    "prompt.0 is {}: give a text or a whole number or a list": {"prompt": [{}, {}]},
    "prompt is null: give a value": {"prompt": None},
    "max_tokens is 65": {"max_tokens": 65},
    "max_tokens is 0: give a number of at least 1": {"max_tokens": 0},
    "temperature is -1: give a number of at least 0": {"temperature": -1},
    "temperature is 'hot': give a number": {"temperature": "hot"},
    "top_p is 0: give a number above 0": {"top_p": 0},
    "seed is 1.5: give a whole number": {"seed": 1.5},
    "asks for 17 outputs": {"n": 17},
    "n is 0: give a number of at least 1": {"n": 0},
    "stop has 0 characters: give at least 1": {"stop": ""},
    "stream_options is for streams": {"stream_options": {"include_usage": True}},
    "the prompt has no ids": {"prompt": [[]]},
    "asks for 0 outputs": {"prompt": []},
    "out of range": {"prompt": [99_999_999]},
    'prompt is {"text": "a"}: give a text or a list': {"prompt": {"text": "a"}},
    "positions": {"prompt": "a " * 5000},
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_requests_are_refused_by_name(client, said):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**({"model": "mini-text", "prompt": STORY} | WRONG[said]))
    error = refused.value.body
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]


def test_values_without_an_effect_are_taken(site, client):
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logprobs": None, "echo": False, "best_of": 1, "logit_bias": {}, "n": None}
    out = client.completions.create(model="mini-text", prompt=STORY, temperature=0, extra_body=neutral)
    assert out.choices[0].text == alone(site, STORY, max_new_tokens=16)[0]


def test_chats_are_refused_by_name(client):
    said = [{"role": "user", "content": STORY}]
    for words, options in {
        "top_logprobs is for logprobs": {"top_logprobs": 2},
        "tools is not supported": {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "response_format is not supported": {"response_format": {"type": "json_object"}},
        "both sent": {"max_tokens": 3, "max_completion_tokens": 3},
        "messages.0.role is 'wizard': give 'system', 'developer'": {"messages": [{"role": "wizard", "content": "a"}]},
        "messages.0.content.0 is {": {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]},
        "unknown field 'messages.0.mood'": {"messages": [{"role": "user", "content": "a", "mood": "b"}]},
        "messages has 0 entries: give at least 1": {"messages": []},
    }.items():
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**({"model": "mini-text", "messages": said} | options))
        assert words in refused.value.body["message"]


def test_other_models_and_kinds_are_not_found(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="gpt-4o", prompt="a")
    assert refused.value.body["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="no image model"):
        client.images.generate(model="mini-image", prompt="a")


def test_the_mini_answers_a_chat():
    """As `mmspec serve --text mini` loads it: in the form of the sums that it was trained on."""
    with running(text_models(LIMITS, chat=False), LIMITS) as other:
        turns = [{"role": "user", "content": "Tom has 2 pens and finds 5. How many pens does he have?"}]
        out = other.client().chat.completions.create(model="mini-text", messages=turns, temperature=0, max_tokens=24)
        prompt = f"Question: {turns[0]['content']}\nAnswer:"
        assert out.choices[0].message.content == alone(other, prompt, max_new_tokens=24)[0]


def test_a_model_without_a_chat_template(site):
    pair = site.models.text.pair
    template = pair.tokenizer.chat_template
    with running(shared_text(pair, LIMITS), LIMITS) as other:
        pair.tokenizer.chat_template = None
        try:
            with pytest.raises(openai.BadRequestError, match="mini-text has no chat template: use /v1/completions"):
                other.client().chat.completions.create(model="mini-text", messages=[{"role": "user", "content": "a"}])
        finally:
            pair.tokenizer.chat_template = template
