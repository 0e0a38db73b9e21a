"""`mmspec serve --text` with a model that reads pictures: OpenAI's client sends them, and gets what `mmspec.text.generate` writes."""

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from PIL import Image

import mmspec
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, TargetSection
from mmspec.serving.http import chat
from mmspec.serving.http.loading import ModelNames, load_served
from mmspec.serving.http.options import ServerLimits
from mmspec.text.inputs.vision_inputs import MARK, VisionPrompt
from tests.serving.web import running, text_models

LIMITS = ServerLimits(max_rows=4, max_tokens=48, max_inputs=3)


@pytest.fixture(scope="module")
def pair():
    return load_pair(Config(target=TargetSection(path="vlm")))


@pytest.fixture(scope="module")
def site():
    config = Config(target=TargetSection(path="vlm"), drafter=DrafterSection(kind="vlm"))
    with running(load_served(ModelNames(config), LIMITS), LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def client(site):
    return site.client()


def url_of(picture, form="png"):
    content = io.BytesIO()
    picture.save(content, form)
    return f"data:image/{form};base64,{base64.b64encode(content.getvalue()).decode()}"


def said(text, *urls):
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": text}]}]


def ask(client, messages, **options):
    return client.chat.completions.create(model="vlm", messages=messages, **{"temperature": 0, "max_tokens": 32} | options)


def alone(pair, prompts, **options):
    """The texts of `mmspec.text.generate`, plain, each prompt alone."""
    texts = []
    for prompt in prompts:
        out = mmspec.text.generate(pair.target, pair.inputs([prompt]), **{"max_new_tokens": 32} | options)
        texts.append(pair.decode(out.tokens[0, : out.lengths[0]].tolist()))
    return texts


def refused(client, messages, **options):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages, **options)
    message = caught.value.body["message"]
    assert "\n" not in message
    return message


def test_answers_are_those_of_the_call_whatever_runs_beside_them(client, pair):
    prompts = pair.examples[:6]
    expected, sampled = alone(pair, prompts), alone(pair, prompts[:2], temperature=0.8, seed=5)
    assert len(set(expected)) > 2  # answers depend on the pictures
    chats = [said(each.prompt, *map(url_of, each.pictures)) for each in prompts]
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(ask, client, chat) for chat in chats]
        drawn = [threads.submit(ask, client, chat, temperature=0.8, seed=5) for chat in chats[:2]]
        assert [each.result().choices[0].message.content for each in answers] == expected
        assert [each.result().choices[0].message.content for each in drawn] == sampled
        assert all(each.result().mmspec["exactness"] == "token-exact" for each in answers)
    assert sum(each.result().mmspec["accepted"] for each in answers) > 0


def test_streams_several_outputs_and_usage(client, pair):
    prompt = pair.examples[0]
    chat = said(prompt.prompt, *map(url_of, prompt.pictures))
    whole = ask(client, chat, n=2, temperature=0.9, seed=3)
    assert [choice.message.content for choice in whole.choices] == [alone(pair, [prompt], temperature=0.9, seed=s)[0] for s in (3, 4)]
    assert whole.usage.prompt_tokens == pair.inputs([prompt])["input_ids"].shape[1]
    texts = ["", ""]
    for chunk in ask(client, chat, n=2, temperature=0.9, seed=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_two_pictures_in_order_and_other_formats(client, pair):
    one, two = (example.pictures[0] for example in pair.examples[:2])
    question = "what do the pictures share?"
    for pictures in ((one, two), (two, one)):
        (expected,) = alone(pair, [VisionPrompt(question, pictures)])
        assert ask(client, said(question, *map(url_of, pictures))).choices[0].message.content == expected
    (expected,) = alone(pair, [VisionPrompt(question, (one,))])
    transparent = Image.new("RGBA", one.size, (255, 0, 0, 0))
    transparent.paste(one)
    assert ask(client, said(question, url_of(transparent))).choices[0].message.content == expected
    assert ask(client, said(question, url_of(one, "bmp"))).choices[0].message.content == expected


def test_a_chat_of_several_turns(client, pair):
    """Pictures are those of the turns they stand in."""
    one, two = (example.pictures[0] for example in pair.examples[:2])
    turns = [
        *said("describe the picture.", url_of(one)),
        {"role": "assistant", "content": "a drawing."},
        *said("and this one?", url_of(two)),
    ]
    text = f"{MARK}\ndescribe the picture.\n\na drawing.\n{MARK}\nand this one?\n"
    inputs = pair.processor(text=[text], images=[[one, two]], return_tensors="pt")
    out = mmspec.text.generate(pair.target, dict(inputs), max_new_tokens=32)
    assert ask(client, turns).choices[0].message.content == pair.decode(out.tokens[0, : out.lengths[0]].tolist())


def test_chats_and_prompts_without_pictures(client, pair):
    inputs = pair.tokenizer(["\nwhat is red?\n"], return_tensors="pt")
    out = mmspec.text.generate(pair.target, {"input_ids": inputs["input_ids"]}, max_new_tokens=24)
    expected = pair.decode(out.tokens[0, : out.lengths[0]].tolist())
    assert ask(client, said("what is red?"), max_tokens=24).choices[0].message.content == expected
    assert ask(client, [{"role": "user", "content": "what is red?"}], max_tokens=24).choices[0].message.content == expected
    out = client.completions.create(model="vlm", prompt="\nwhat is red?\n", temperature=0, max_tokens=24)
    assert out.choices[0].text == expected


def test_what_cannot_be_read_is_refused_in_one_line(client, pair, monkeypatch):
    good = url_of(pair.examples[0].pictures[0])
    assert "picture 1 of the chat is no data URL" in refused(client, said("what?", "http://127.0.0.1/a.png"))
    assert "picture 2 of the chat is no data URL" in refused(client, said("what?", good, "file:///etc/passwd"))
    assert "is no data URL" in refused(client, said("what?", "data:text/html;base64,aGk="))
    assert "is not valid base64" in refused(client, said("what?", "data:image/png;base64,@@@"))
    assert "is an empty file" in refused(client, said("what?", "data:image/png;base64,"))
    assert "is no picture that can be read" in refused(client, said("what?", "data:image/png;base64,aGVsbG8="))
    head, _, content = good.partition(",")
    assert "is broken" in refused(client, said("what?", f"{head},{content[: len(content) // 8 * 4]}"))
    large = url_of(Image.new("1", (10_000, 9_000)))
    assert "at most 89,478,485 are unpacked" in refused(client, said("what?", large))
    assert "the chat has 4 pictures: this server reads at most 3" in refused(client, said("what?", *[good] * 4))
    assert "cannot take this prompt" in refused(client, said(f"{MARK} what?", good))
    assert "messages.0.content" in refused(client, [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}])
    sharp = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": good, "detail": "sharp"}}]}]
    assert "messages.0.content.0.image_url.detail is 'sharp': give 'auto', 'low', 'high' or 'original'" in refused(client, sharp)
    monkeypatch.setattr(chat, "PIXELS", 150)
    assert "the first 2 pictures of the chat have" in refused(client, said("what?", *[url_of(Image.new("1", (10, 10)))] * 3))
    monkeypatch.undo()
    whole = alone(pair, pair.examples[:1])[0]
    for detail in (None, "auto", "high"):
        messages = said(pair.examples[0].prompt, good)
        messages[0]["content"][0]["image_url"]["detail"] = detail
        assert ask(client, messages).choices[0].message.content == whole


def test_a_model_that_reads_text_only_refuses_pictures(pair):
    with running(text_models(LIMITS), LIMITS) as site, pytest.raises(openai.BadRequestError, match="mini-text reads text, not pictures"):
        site.client().chat.completions.create(model="mini-text", messages=said("what?", url_of(pair.examples[0].pictures[0])))
