"""`mmspec serve`: log-probabilities are those of a plain forward over the text, and failures after the start are told as such."""

import logging

import openai
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mmspec.models.families.registry import family_of
from mmspec.models.prompt_proof import note_proven
from mmspec.serving.engine import Engine
from tests.conftest import llama
from tests.serving.web import LIMITS, STORY, running, shared_text


@torch.no_grad()
def forced(model, prompt, tokens, *processors):
    """Log-probabilities [S, V] at every token, from one plain forward over prompt and tokens."""
    ids = torch.tensor([[*prompt, *tokens]])
    logits, found = model(ids).logits[0], []
    for place in range(len(prompt), ids.shape[1]):
        scores = logits[place - 1 : place]
        for processor in processors:
            scores = processor(ids[:, :place], scores)
        found.append(scores.log_softmax(-1)[0])
    return torch.stack(found)


CASES = {
    "greedy": ({"temperature": 0}, ()),
    "greedy, penalised": ({"temperature": 0, "repetition_penalty": 1.3}, (RepetitionPenaltyLogitsProcessor(1.3),)),
    "plain sampling": ({"temperature": 1.0}, ()),
    "truncated": (
        {"temperature": 0.7, "top_k": 7, "top_p": 0.9},
        (TemperatureLogitsWarper(0.7), TopKLogitsWarper(7), TopPLogitsWarper(0.9)),
    ),
}


@pytest.mark.parametrize(("drafter", "tree"), [("lookup", None), ("same", None), ("same", (2, 2)), (None, None)])
def test_the_engine_reports_what_a_plain_forward_gives(drafter, tree):
    """Every case at once, beside requests that ask for nothing, in chains and trees."""
    model, prompt = llama(2, seed=0), [5, 6, 7, 5, 6]
    inputs = {"input_ids": torch.tensor([prompt])}
    with Engine(
        model, model if drafter == "same" else drafter, tree=tree, draft_length=3 if drafter and tree is None else "auto"
    ) as engine:
        for seed in range(2):
            asked = {
                name: engine.submit(inputs, **options, seed=seed, max_new_tokens=14, logprobs=3) for name, (options, _) in CASES.items()
            }
            silent = {name: engine.submit(inputs, **options, seed=seed, max_new_tokens=14) for name, (options, _) in CASES.items()}
            for name, handle in asked.items():
                tokens = handle.result(60).tokens[0].tolist()
                assert tokens == silent[name].result(60).tokens[0].tolist()
                assert silent[name].logprobs == []
                right = forced(model, prompt, tokens, *CASES[name][1])
                told = handle.logprobs
                assert len(told) == len(tokens)
                own = right.gather(1, torch.tensor(tokens)[:, None])[:, 0]
                torch.testing.assert_close(torch.tensor([each.logprob for each in told]), own, atol=1e-4, rtol=0)
                for line, each in zip(right, told, strict=True):
                    best = [
                        (value, token) for value, token in zip(*(part.tolist() for part in line.topk(3)), strict=True) if value > -torch.inf
                    ]
                    assert len(each.top) == len(best)
                    assert [value for _, value in each.top] == pytest.approx([value for value, _ in best], abs=1e-4)
                    for token, value in each.top:
                        assert value == pytest.approx(line[token].item(), abs=1e-4)


def right_of(site, ids, temperature):
    """The tokens of a completion's text, and the log-probabilities of a plain forward."""
    model, tokenizer = site.models.text.pair.target, site.models.text.pair.tokenizer
    prompt = tokenizer(STORY)["input_ids"]
    return prompt, forced(model, prompt, ids, *(() if temperature == 0 else (TemperatureLogitsWarper(temperature),)))


def generated(site, **options):
    """The ids that the engine makes."""
    served = site.models.text
    ids = served.pair.tokenizer(STORY, return_tensors="pt")["input_ids"]
    return served.engine.submit({"input_ids": ids}, **options).result(60).tokens[0].tolist()


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_completions_have_them_in_openais_shape(site, client, temperature):
    options = {"model": "mini-text", "prompt": STORY, "temperature": temperature, "max_tokens": 24, "seed": 3, "logprobs": 2}
    choice = client.completions.create(**options).choices[0]
    told, ids = choice.logprobs, generated(site, temperature=float(temperature), seed=3, max_new_tokens=24)
    _, right = right_of(site, ids, temperature)
    count = len(told.tokens)
    assert count in (len(ids), len(ids) - 1)  # the end token has no text
    assert "".join(told.tokens) == choice.text
    assert [choice.text[start:].startswith(token) for start, token in zip(told.text_offset, told.tokens, strict=True)] == [True] * count
    own = right.gather(1, torch.tensor(ids)[:, None])[:count, 0].tolist()
    assert told.token_logprobs == pytest.approx(own, abs=1e-4)
    for line, top in zip(right, told.top_logprobs, strict=False):
        assert max(top.values()) == pytest.approx(line.max().item(), abs=1e-4)
        assert 1 <= len(top) <= 2
    chunks = [chunk.choices[0] for chunk in client.completions.create(**options, stream=True)]
    assert [each for chunk in chunks for each in chunk.logprobs.tokens] == told.tokens
    assert [each for chunk in chunks for each in chunk.logprobs.token_logprobs] == pytest.approx(told.token_logprobs, abs=1e-4)
    assert [each for chunk in chunks for each in chunk.logprobs.text_offset] == told.text_offset
    without = client.completions.create(**options | {"logprobs": None}).choices[0]
    assert (without.text, without.logprobs) == (choice.text, None)


def test_chats_have_them_in_openais_shape(site, client):
    said = [{"role": "user", "content": STORY}]
    options = {"model": "mini-text", "messages": said, "temperature": 0, "max_tokens": 12, "logprobs": True}
    choice = client.chat.completions.create(**options, top_logprobs=4).choices[0]
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    for entry in entries:
        assert bytes(entry.bytes).decode() == entry.token
        assert [other.logprob for other in entry.top_logprobs] == sorted((other.logprob for other in entry.top_logprobs), reverse=True)
        assert (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob) == (entry.token, entry.logprob)  # greedy
        assert len(entry.top_logprobs) == 4
    bare = client.chat.completions.create(**options).choices[0].logprobs.content
    assert [(entry.token, entry.top_logprobs) for entry in bare] == [(entry.token, []) for entry in entries]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**options, stream=True)]
    streamed = [entry for chunk in chunks if chunk.logprobs is not None for entry in chunk.logprobs.content]
    assert [(entry.token, entry.bytes) for entry in streamed] == [(entry.token, entry.bytes) for entry in entries]


def test_tokens_behind_a_stop_string_have_none(site, client):
    options = {"model": "mini-text", "prompt": STORY, "temperature": 0, "max_tokens": 32, "logprobs": 0}
    whole = client.completions.create(**options).choices[0]
    word = whole.text[21:26]
    out = client.completions.create(**options, stop=word).choices[0]
    count = len(out.logprobs.tokens)
    assert out.logprobs.tokens == whole.logprobs.tokens[:count]
    assert out.logprobs.text_offset[-1] < len(out.text) <= whole.logprobs.text_offset[count]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**options, stop=word, stream=True)]
    assert [each for chunk in chunks for each in chunk.logprobs.tokens] == out.logprobs.tokens


def test_an_error_of_the_decoding_is_not_the_clients(site, caplog):
    """ValueErrors of arguments are 400; those of a forward are 500, with their traceback in the log."""
    with running(shared_text(site.models.text.pair, LIMITS), LIMITS) as other:
        client = other.client()
        options = {"model": "mini-text", "prompt": STORY, "max_tokens": 8, "temperature": 0}

        def broken(*_):
            raise ValueError("the inside of a model")

        target = site.models.text.pair.target
        hook = target.model.register_forward_pre_hook(broken)
        note_proven(target, family_of(target))  # the self-test that a hook asks for would meet the error first
        try:
            with caplog.at_level(logging.ERROR, "mmspec.serving"), pytest.raises(openai.InternalServerError) as failed:
                client.completions.create(**options)
            with pytest.raises(openai.APIError, match="the request failed"):
                list(client.completions.create(**options, stream=True))
            with pytest.raises(openai.BadRequestError, match="positions"):
                client.completions.create(**options | {"prompt": "a " * 5000})
        finally:
            hook.remove()
        assert failed.value.body["message"] == "the request failed (DecodeError)"
        assert "the inside of a model" in caplog.text
        assert "in broken" in caplog.text
        assert client.completions.create(**options).choices
