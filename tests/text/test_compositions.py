"""Cascades and relays of transformers models, sources and names, in one public call and on the command line."""

import json

import pytest
import torch

import mmspec
from mmspec.cli import app
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.model.horizontal_cascade import HorizontalCascade
from mmspec.drafters.model.vertical_cascade import VerticalCascade
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.windowed import Windowed
from mmspec.run.composition import inner_rule, named
from tests.drafters.cascades import perturbed
from tests.drafters.runs import once, random_prompt

RAGGED = random_prompt(5, 9, 7, seed=1)
NEW = 14


@pytest.fixture(scope="module")
def near(big):
    return perturbed(big, 0.02)


@pytest.fixture(scope="module")
def further(big):
    return perturbed(big, 0.05)


def compositions(near, further, rule="exact") -> dict:
    """Every way to write one down: models, drafter objects, sources and names, nested both ways."""
    return {
        "staged": VerticalCascade(near, further, rule),
        "model and object": VerticalCascade(near, Lookup(), rule),
        "model and name": VerticalCascade(near, "ngram", rule),
        "source": VerticalCascade(Windowed(4, 8), further, rule),
        "source and name": VerticalCascade(EarlyExit(2), "lookup", rule),
        "cascade of cascades": VerticalCascade(near, VerticalCascade(further, "lookup", rule, 1, 2), rule),
        "relay of models": HorizontalCascade(near, 2, further),
        "relay to lookup": HorizontalCascade(near, 2, Lookup()),
        "relay of names": HorizontalCascade("lookup", 2, "ngram"),
        "relay of a cascade": HorizontalCascade(VerticalCascade(near, "lookup", rule), 2, further),
        "name, cascade": "cascade:windowed,lookup",
        "name, relay": "relay:early-exit,2,lookup",
    }


NAMES = tuple(compositions(None, None))


def written(model, inputs, **options) -> list[list[int]]:
    """The tokens of plain decoding."""
    asked = ("text", *sorted(options.items()))
    return once(model, asked, inputs, lambda: mmspec.text.generate(model, inputs, max_new_tokens=NEW, **options).sequences.tolist())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("inputs", "lengths"), [(random_prompt(9), (3, "auto", 3)), (RAGGED, ("auto", 3, "auto"))], ids=["one", "ragged"])
def test_the_output_is_that_of_plain_decoding(big, near, further, name, inputs, lengths):
    """Every pair of prompts, sampling and draft length."""
    sampled = {"temperature": 1.0, "seed": 4}
    for options, length in zip(({}, sampled, sampled | {"accept": "match"}), lengths, strict=True):
        drafter = compositions(near, further)[name]
        out = mmspec.text.generate(big, inputs, drafter, max_new_tokens=NEW, draft_length=length, **options)
        assert out.sequences.tolist() == written(big, inputs, **options), f"{name}, {options}, {length}"


@pytest.mark.parametrize("rule", ["token", "block"])
def test_the_middle_draws_what_it_records(big, near, further, rule):
    """Under rules that read q the whole cascade accepts as the middle alone would: with the target as its middle, everything."""
    out = mmspec.text.generate(
        big, RAGGED, VerticalCascade(big, further, "exact", 4, 3), accept=rule, draft_length=3, max_new_tokens=NEW, temperature=1.0
    )
    assert out.stats.rejected == 0
    assert out.stats.drafted > 0


def test_the_inner_rule_suits_the_outer_one():
    outers = [(Greedy(), Greedy()), (Coupled(), Coupled()), (Match(), Match()), (Token(), Token()), (Block(), Token())]
    assert [inner_rule(None, outer) for outer, _ in outers] == [inner for _, inner in outers]
    assert inner_rule("block", Token()) == Block()
    assert inner_rule(Token(), Greedy()) == Token()


@pytest.mark.parametrize("name", ["cascade:", "cascade:lookup", "relay:lookup,ngram", "relay:lookup,x,ngram", "cascade:a,b,c"])
def test_names_of_another_form_are_shown_the_form(name):
    with pytest.raises(ValueError, match=r"cannot be read: write (cascade:MIDDLE,INNER|relay:FIRST,COUNT,THEN)"):
        named(name)


def test_a_middle_that_is_no_model_is_refused(big):
    with pytest.raises(ValueError, match=r"the middle of a cascade is 'lookup': pass a transformers model"):
        mmspec.text.generate(big, RAGGED, "cascade:lookup,ngram")


@pytest.mark.parametrize("drafter", ["relay:lookup,2,windowed", "cascade:windowed,early-exit"])
def test_drafters_that_read_the_target_come_first(big, drafter):
    with pytest.raises(ValueError, match="make it the first of a relay or the middle of a cascade"):
        mmspec.text.generate(big, RAGGED, drafter)


@pytest.fixture(scope="module")
def mini_and_examples():
    mini = mmspec.load("text")
    return mini, {key: value[:3] for key, value in mini.examples.items()}


@pytest.mark.parametrize("name", ["eagle1", "eagle3", "hydra", "kangaroo", "medusa", "mixture-of-attentions"])
def test_trained_drafters_go_first_in_a_relay(name, mini_and_examples):
    mini, examples = mini_and_examples
    plain = written(mini.target, examples)
    alone = mmspec.text.generate(mini.target, examples, mini.drafters[name], draft_length=2, max_new_tokens=NEW)
    out = mmspec.text.generate(
        mini.target, examples, HorizontalCascade(mini.drafters[name], 2, "lookup"), draft_length=4, max_new_tokens=NEW
    )
    assert out.sequences.tolist() == plain
    assert out.stats.target_calls <= alone.stats.target_calls


def test_other_vocabularies_are_refused(big):
    from tests.tiny import llama

    with pytest.raises(ValueError, match="mismatched vocabularies"):
        mmspec.text.generate(big, RAGGED, VerticalCascade(llama(400), "lookup", "exact"))


def test_tokens_a_call_grow_with_a_better_middle(big, near, further):
    calls = [
        mmspec.text.generate(
            big, RAGGED, VerticalCascade(middle, "lookup", "exact", 4, 3), draft_length=4, max_new_tokens=NEW
        ).stats.tokens_per_call
        for middle in (further, big)
    ]
    assert calls[0] < calls[1]
    assert torch.isfinite(torch.tensor(calls)).all()


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    folder, mini = tmp_path_factory.mktemp("small"), mmspec.load("text")
    mini.drafters["model"].save_pretrained(folder)
    mini.processor.save_pretrained(folder)
    return folder


def said(capsys, drafter):
    with pytest.raises(SystemExit) as stopped:
        app(["text", "Once upon a time", "--drafter", drafter, "--max-new-tokens", "12", "--device", "cpu", "--json"])
    assert stopped.value.code == 0
    return json.loads(capsys.readouterr().out)["tokens"]


DRAFTERS = ("cascade:windowed,lookup", "cascade:{small},lookup", "relay:{small},2,ngram", "relay:eagle3,2,lookup")


def test_the_command_line_takes_them(capsys, small_folder):
    plain = said(capsys, "none")
    for drafter in DRAFTERS:
        assert said(capsys, drafter.format(small=small_folder)) == plain, drafter
