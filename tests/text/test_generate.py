"""The public call: what it promises, and one clear line for everything a request can get wrong."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TextStreamer

import mmspec
from mmspec.text import StopStrings, aligned_drafter
from tests.families import FAMILIES, LLAMA, VOCAB, build, inputs_for

TOKENS = 24


@pytest.fixture(scope="module")
def pair():
    """A target and a drafter that agrees with it about half of the time."""
    target = build(FAMILIES["Llama"])
    drafter = build(FAMILIES["Llama"])
    torch.manual_seed(9)
    for parameter in drafter.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.02)
    for model in (target, drafter):
        model.generation_config.eos_token_id = None
    return target, drafter


def batch_of_8() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    lengths = [3, 12, 7, 1, 12, 5, 9, 2]
    ids, mask = torch.randint(3, VOCAB, (8, 12)), torch.zeros(8, 12, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, 12 - length :] = 1
    return {"input_ids": ids * mask, "attention_mask": mask}


def alone(inputs, row):
    return {key: value[row : row + 1] for key, value in inputs.items()}


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2}])
@pytest.mark.parametrize("length", [1, 3, 6])
def test_a_request_says_the_same_alone_in_a_batch_of_8_and_at_any_draft_length(pair, options, length):
    target, drafter = pair
    inputs = batch_of_8()
    plain = mmspec.text.generate(target, inputs, max_new_tokens=TOKENS, seed=5, **options)
    many = mmspec.text.generate(target, inputs, drafter, max_new_tokens=TOKENS, seed=5, draft_length=length, **options)
    assert torch.equal(plain.sequences, many.sequences)
    for row in range(0, 8, 3):
        one = mmspec.text.generate(target, alone(inputs, row), drafter, max_new_tokens=TOKENS, seed=5 + row, draft_length=length, **options)
        assert torch.equal(one.sequences[0], many.sequences[row])


@pytest.mark.parametrize("accept", ["token", "block"])
def test_distribution_exact_rules_repeat_themselves_alone_and_in_a_batch(pair, accept):
    target, drafter = pair
    inputs = batch_of_8()
    options = {"max_new_tokens": TOKENS, "temperature": 1.0, "accept": accept, "draft_length": 3}
    many = mmspec.text.generate(target, inputs, drafter, seed=2, **options)
    for row in (0, 4, 7):
        one = mmspec.text.generate(target, alone(inputs, row), drafter, seed=2 + row, **options)
        assert torch.equal(one.sequences[0], many.sequences[row])
    if accept == "token":  # each judged draft token is refused with probability TV(p, q)
        assert many.stats.expected_rejections == pytest.approx(many.stats.rejected, rel=0.35)


def test_seeds_per_row_are_those_of_single_requests(pair):
    target, drafter = pair
    inputs = batch_of_8()
    out = mmspec.text.generate(target, inputs, drafter, max_new_tokens=8, temperature=1.0, seed=[7] * 8, draft_length=2)
    again = mmspec.text.generate(target, alone(inputs, 6), drafter, max_new_tokens=8, temperature=1.0, seed=7, draft_length=2)
    assert torch.equal(out.sequences[6], again.sequences[0])


def test_temperature_may_differ_by_row(pair):
    target, drafter = pair
    inputs = batch_of_8()
    temperatures = [0.0, 1.0] * 4
    out = mmspec.text.generate(target, inputs, drafter, accept="coupled", max_new_tokens=8, temperature=temperatures, draft_length=2)
    greedy = mmspec.text.generate(target, inputs, max_new_tokens=8)
    hot = mmspec.text.generate(target, inputs, max_new_tokens=8, temperature=1.0)
    assert torch.equal(out.sequences[::2], greedy.sequences[::2])
    assert torch.equal(out.sequences[1::2], hot.sequences[1::2])


@pytest.mark.parametrize("temperature", [0.7, 1.5])
@pytest.mark.parametrize("accept", ["token", "block", "coupled"])
def test_a_target_accepts_every_draft_token_of_its_own_under_top_p(pair, accept, temperature):
    target, _ = pair
    out = mmspec.text.generate(
        target, batch_of_8(), target, accept=accept, max_new_tokens=30, temperature=temperature, top_p=0.9, draft_length=5
    )
    assert out.stats.accepted == out.stats.drafted


def test_an_end_token_inside_an_accepted_run_is_cut_exactly_there(pair):
    target, _ = pair
    inputs = alone(batch_of_8(), 1)
    whole = mmspec.text.generate(target, inputs, max_new_tokens=TOKENS).sequences[0].tolist()
    end = whole[9]
    target.generation_config.eos_token_id = end
    try:
        out = mmspec.text.generate(target, inputs, target, max_new_tokens=TOKENS, draft_length=6)
    finally:
        target.generation_config.eos_token_id = None
    assert out.sequences[0].tolist() == whole[: whole.index(end) + 1]
    assert out.lengths.tolist() == [whole.index(end) + 1]
    assert out.stats.tokens == whole.index(end) + 1


def test_a_stop_string_cuts_where_it_is_complete(pair):
    target, drafter = pair
    inputs = batch_of_8()
    plain = mmspec.text.generate(target, inputs, max_new_tokens=TOKENS)
    spell = lambda ids: "".join(chr(40 + i) for i in ids)  # noqa: E731
    wanted = spell(plain.sequences[0].tolist()[4:7])
    out = mmspec.text.generate(target, inputs, drafter, max_new_tokens=TOKENS, draft_length=5, stops=[StopStrings((wanted,), spell)])
    for row, length in enumerate(out.lengths.tolist()):
        said = spell(plain.sequences[row].tolist())
        where = said.find(wanted)
        assert length == (TOKENS if where < 0 else where + len(wanted))
        assert out.sequences[row, :length].tolist() == plain.sequences[row, :length].tolist()


@pytest.mark.parametrize(("mine", "theirs"), [(60, 62), (64, 61)])
def test_unequal_padded_vocabularies_still_say_the_same(mine, theirs):
    torch.manual_seed(0)
    target = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": mine})).eval()
    drafter = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": theirs})).eval()
    for options in ({}, {"temperature": 1.0}, {"temperature": 1.0, "accept": "token"}):
        out = mmspec.text.generate(target, inputs_for("Llama", 3), drafter, max_new_tokens=TOKENS, draft_length=3, **options)
        assert out.sequences.shape[0] == 3
        if options.get("accept") != "token":
            plain = mmspec.text.generate(target, inputs_for("Llama", 3), max_new_tokens=TOKENS, **options)
            assert torch.equal(out.sequences, plain.sequences)


def words(vocabulary: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


def test_another_tokenizer_is_aligned_by_spelling(pair):
    target, _ = pair
    ours = words(["?", *(f"w{i}" for i in range(1, VOCAB))])
    theirs = words(["?", *(f"w{i}" for i in range(VOCAB - 1, 10, -1))])
    permuted = build(FAMILIES["Llama"])
    inputs = inputs_for("Llama", 3)
    for accept, temperature in (("exact", 0.0), ("exact", 1.0)):
        drafter = aligned_drafter(target, ours, permuted, theirs, temperature, accept)
        out = mmspec.text.generate(target, inputs, drafter, accept=accept, max_new_tokens=TOKENS, temperature=temperature, draft_length=3)
        plain = mmspec.text.generate(target, inputs, max_new_tokens=TOKENS, temperature=temperature)
        assert torch.equal(out.sequences, plain.sequences)
    with pytest.raises(ValueError, match=r"mismatched vocabularies: the drafter knows 1 of the target's 60 tokens"):
        aligned_drafter(target, ours, permuted, words(["?", "a", "b"]))


def test_generating_twice_gives_the_same_and_leaves_no_residue(pair):
    target, drafter = pair
    config, weights = target.config.to_dict(), [p.clone() for p in target.parameters()]
    runs = [mmspec.text.generate(target, batch_of_8(), drafter, max_new_tokens=8, temperature=1.0, tree=(2, 2)) for _ in range(2)]
    assert torch.equal(runs[0].sequences, runs[1].sequences)
    assert target.config.to_dict() == config
    assert all(torch.equal(a, b) for a, b in zip(weights, target.parameters(), strict=True))


def test_auto_draft_length_says_the_same(pair):
    target, drafter = pair
    plain = mmspec.text.generate(target, batch_of_8(), max_new_tokens=40, temperature=1.0)
    auto = mmspec.text.generate(target, batch_of_8(), drafter, max_new_tokens=40, temperature=1.0)
    assert torch.equal(plain.sequences, auto.sequences)


BAD = {
    "max_new_tokens is 0": {"max_new_tokens": 0},
    "unknown drafter 'nope' .*; valid: copy, early-exit, jacobi": {"drafter": "nope"},
    "unknown accept rule 'nope'; valid: always-accept, block, chow": {"accept": "nope"},
    "temperature is -1": {"temperature": -1.0},
    "top_p is 1.5": {"temperature": 1.0, "top_p": 1.5},
    "top_k is -2": {"temperature": 1.0, "top_k": -2},
    "repetition_penalty is 0": {"repetition_penalty": 0.0},
    "draft_length is 'long'": {"draft_length": "long", "drafter": "self"},
    "draft_length is -1": {"draft_length": -1, "drafter": "self"},
    "unknown tree 'bush'": {"tree": "bush", "drafter": "self"},
    "Token judges chains only": {"tree": (2, 2), "drafter": "self", "accept": "token", "temperature": 1.0},
    "seed has 2 entries for 3 rows": {"seed": [1, 2]},
    "exceed the model's 128 positions: ask for at most 116": {"max_new_tokens": 120},
    "streamer serves one prompt": {"streamer": TextStreamer(None)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_requests_get_one_clear_line(pair, message):
    target, _ = pair
    options = {"max_new_tokens": 8, **BAD[message]}
    if options.get("drafter") == "self":
        options["drafter"] = target
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as caught:
        mmspec.text.generate(target, inputs_for("Llama", 3), **options)
    assert "\n" not in str(caught.value)


def test_bad_inputs_get_one_clear_line(pair):
    target, _ = pair
    good = inputs_for("Llama", 2)
    empty = {key: value[:0] for key, value in good.items()}
    blank = {"input_ids": good["input_ids"], "attention_mask": torch.zeros_like(good["attention_mask"])}
    for inputs, message in ((empty, "the batch is empty"), (blank, "prompt 0 is empty"), ({}, "inputs has no input_ids")):
        with pytest.raises(ValueError, match=message):
            mmspec.text.generate(target, inputs, max_new_tokens=8)
    small = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": 1000})).eval()
    with pytest.raises(ValueError, match="mismatched vocabularies: the target has 60 tokens, the drafter 1000"):
        mmspec.text.generate(target, good, small, max_new_tokens=8)
    with pytest.raises(ValueError, match="not a transformers generation model"):
        mmspec.text.generate(torch.nn.Linear(2, 2), good)


def test_nan_logits_name_the_row_and_the_step():
    target = build(FAMILIES["Llama"])
    target.generation_config.eos_token_id = None
    inputs = inputs_for("Llama", 3)
    said = mmspec.text.generate(target, inputs, max_new_tokens=TOKENS).sequences
    poison = next(v for v in said[1].tolist() if v not in said[0].tolist() + said[2].tolist() + inputs["input_ids"].flatten().tolist())
    target.model.embed_tokens.weight.data[poison] = float("nan")
    step = said[1].tolist().index(poison) + 1
    with pytest.raises(FloatingPointError, match=f"NaN or infinity in row 1 at output position {step}"):
        mmspec.text.generate(target, inputs, max_new_tokens=TOKENS)
