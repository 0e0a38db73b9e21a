"""Every setting of `generate` under the drop-in gives what `generate` alone gives: batch 1 and a ragged batch, chains and trees."""

import warnings
from functools import cache

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)
from transformers.generation import logits_process as known
from transformers.generation import stopping_criteria as criteria

import mmspec
from tests.families import FAMILIES, VOCAB, build, inputs_for

TOKENS = 18
TREES = (None, (2, 2, 1))
EACH_BATCH = pytest.mark.parametrize("rows", [1, 3])


@cache
def built(name: str):
    return build(FAMILIES[name])


def trees_of(table: dict, name: str, rows: int) -> tuple:
    """Chain or tree: every pair of setting and tree, setting and batch, batch and tree; rows that end early in a batch have both."""
    turn = list(table).index(name) % 2
    return TREES if rows > 1 and "early" in table[name] else (TREES[turn if rows > 1 else 1 - turn],)


@cache
def perturbed(name: str, scale: float = 0.03):
    """A drafter that is often right and often wrong."""
    model = build(FAMILIES[name])
    torch.manual_seed(9)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * scale)
    return model


@pytest.fixture(scope="module")
def model():
    return build(FAMILIES["Llama"])


@pytest.fixture(scope="module")
def drafter():
    return perturbed("Llama")


@pytest.fixture(scope="module")
def ends(model):
    """Tokens that end two of the three rows early."""
    out = model.generate(**inputs_for("Llama", 3), do_sample=False, max_new_tokens=TOKENS)[:, 12:]
    return [out[0, 5].item(), out[2, 9].item()]


def drafted(model, inputs, drafter, tree=None, seed=None, stateless=(), **options):
    """The drop-in's output, which must come with no warning: mmspec has drafted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="speculate")
        how = mmspec.text.speculate(drafter, draft_length=3, tree=tree, seed=seed, stateless=stateless)
        return model.generate(**inputs, max_new_tokens=TOKENS, **options, custom_generate=how)


def not_drafted(model, inputs, drafter, because: str, seed=None, **options):
    """The drop-in's output, which must come with a warning that says why nothing was drafted."""
    with pytest.warns(UserWarning, match=f"without drafting: .*{because}"):
        return model.generate(
            **inputs, **{"max_new_tokens": TOKENS, **options}, custom_generate=mmspec.text.speculate(drafter, draft_length=3, seed=seed)
        )


def allowed(row: int, ids: torch.Tensor) -> list[int]:
    return [*range(5 + 7 * row, 30 + 7 * row), (int(ids[-1]) * 3 + int(ids[0])) % VOCAB]


GREEDY = {
    "nothing": {},
    "repetition penalty": {"repetition_penalty": 1.4},
    "repetition penalty that counts pads": {"logits_processor": [known.RepetitionPenaltyLogitsProcessor(1.5)]},
    "repetition penalty without the prompt": {"logits_processor": [known.RepetitionPenaltyLogitsProcessor(1.5, prompt_ignore_length=12)]},
    "no 2-gram twice": {"no_repeat_ngram_size": 2},
    "no 1-gram of the encoder": {"encoder_no_repeat_ngram_size": 1},
    "no 2-gram of the encoder": {"encoder_no_repeat_ngram_size": 2},
    "encoder penalty": {"encoder_repetition_penalty": 1.6},
    "bad words": {"bad_words_ids": [[5, 6], [7], [30, 31, 32]]},
    "biases": {"sequence_bias": {(9,): 3.0, (10, 11): -5.0, (0, 17): 9.0, (3, 4, 5): 2.0}},
    "minimum of new tokens": {"min_new_tokens": 15, "early": True},
    "minimum length": {"min_length": 20, "early": True},
    "decay": {"exponential_decay_length_penalty": (4, 1.3), "early": True},
    "prefix function": {"prefix_allowed_tokens_fn": allowed},
    "forced first": {"forced_bos_token_id": 8},
    "forced last": {"forced_eos_token_id": [2, 9]},
    "suppressed": {"suppress_tokens": [7, 9, 11], "begin_suppress_tokens": [13, 14]},
    "infinities": {"remove_invalid_values": True, "suppress_tokens": [7]},
    "normalised": {"renormalize_logits": True, "repetition_penalty": 1.2},
    "green list": {"watermarking_config": WatermarkingConfig(bias=2.0)},
    "green list, self hash": {"watermarking_config": WatermarkingConfig(bias=2.0, seeding_scheme="selfhash", context_width=3)},
    "several ends": {"early": True},
    "time enough": {"max_time": 1000.0},
    "sampling settings without sampling": {"temperature": 0.3, "top_k": 3, "top_p": 0.5},
    "static cache": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
    "prompt in parts": {"prefill_chunk_size": 5},
    "no compilation": {"disable_compile": True},
    "all together": {
        **{"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": [[5, 6]], "min_new_tokens": 6, "early": True},
        **{"sequence_bias": {(9,): 1.0}, "encoder_repetition_penalty": 1.3, "forced_eos_token_id": 2, "renormalize_logits": True},
    },
}
WARPERS = {
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "top-p of at least 4": {"logits_processor": [known.TopPLogitsWarper(0.1, min_tokens_to_keep=4)]},
    "min-p": {"min_p": 0.2},
    "min-p of at least 4": {"logits_processor": [known.MinPLogitsWarper(0.9, min_tokens_to_keep=4)]},
    "top-h": {"top_h": 0.4},
    "typical": {"typical_p": 0.5},
    "epsilon": {"epsilon_cutoff": 0.03},
    "eta": {"eta_cutoff": 0.05},
    "several": {"temperature": 1.4, "top_k": 20, "top_p": 0.8, "typical_p": 0.9, "repetition_penalty": 1.2, "early": True},
    "green list": {"watermarking_config": WatermarkingConfig(bias=2.0)},
    "prefix function": {"prefix_allowed_tokens_fn": allowed},
}


def options_of(found: dict, ends: list[int]) -> dict:
    """`early` stands for end tokens that two rows write."""
    options = {key: value for key, value in found.items() if key != "early"}
    if "logits_processor" in options:
        options["logits_processor"] = LogitsProcessorList(options["logits_processor"])
    return options | ({"eos_token_id": ends} if "early" in found else {})


@EACH_BATCH
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_output_is_that_of_generate(model, drafter, ends, name, rows):
    inputs, options = inputs_for("Llama", rows), options_of(GREEDY[name], ends)
    expected = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, **options)
    for tree in trees_of(GREEDY, name, rows):
        assert torch.equal(drafted(model, inputs, drafter, tree, do_sample=False, **options), expected), tree


class Idle(LogitsProcessor):
    """Changes nothing, and does not say so: transformers' own loop runs."""

    def __call__(self, input_ids, scores):
        return scores


@EACH_BATCH
@pytest.mark.parametrize("name", WARPERS)
def test_sampled_output_is_that_of_transformers_own_loop_with_the_same_noise(model, drafter, ends, name, rows):
    inputs, options = inputs_for("Llama", rows), options_of(WARPERS[name], ends)
    found = [drafted(model, inputs, drafter, tree, seed=5, do_sample=True, **options) for tree in trees_of(WARPERS, name, rows)]
    first = [Idle(), *options.pop("logits_processor", [])]
    expected = not_drafted(model, inputs, drafter, "Idle", seed=5, do_sample=True, logits_processor=LogitsProcessorList(first), **options)
    assert all(torch.equal(out, expected) for out in found)


# --- processors and criteria that keep a state ------------------------------------------------------------------------


class Counter(LogitsProcessor):
    """Notes what it is called with and lets its scores depend on the number of calls and on its row's neighbours."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(input_ids.clone())
        return scores + (len(self.seen) % 3) * torch.nn.functional.one_hot(input_ids[0, -1], VOCAB) * 4


class EveryOther(StoppingCriteria):
    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        return torch.full((len(input_ids),), self.calls > 6) & (input_ids[:, -1] % 2 == 0)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_processor_with_a_state_is_called_as_transformers_calls_it(model, drafter, ends, rows):
    inputs, (one, two) = inputs_for("Llama", rows), (Counter(), Counter())
    options = {"do_sample": False, "eos_token_id": ends}
    expected = model.generate(**inputs, max_new_tokens=TOKENS, **options, logits_processor=LogitsProcessorList([one]))
    out = not_drafted(model, inputs, drafter, "Counter", **options, logits_processor=LogitsProcessorList([two]))
    assert torch.equal(out, expected)
    assert len(one.seen) == len(two.seen)
    assert all(torch.equal(a, b) for a, b in zip(one.seen, two.seen, strict=True))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("eos", [2, None])
def test_a_criterion_with_a_state_is_asked_as_transformers_asks_it(model, drafter, rows, eos):
    inputs, options = inputs_for("Llama", rows), {"do_sample": False, "eos_token_id": eos, "pad_token_id": 0}
    expected = model.generate(**inputs, max_new_tokens=TOKENS, **options, stopping_criteria=StoppingCriteriaList([EveryOther()]))
    out = not_drafted(model, inputs, drafter, "EveryOther", **options, stopping_criteria=StoppingCriteriaList([EveryOther()]))
    assert torch.equal(out, expected)


STATEFUL = {
    "guidance": {"guidance_scale": 1.7},
    "guidance with a negative prompt": {"guidance_scale": 1.7, "negative": True},
    "SynthID": {"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[3, 5, 7], sampling_table_size=64)},
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", STATEFUL)
def test_transformers_own_processors_with_a_state(model, drafter, name, rows):
    inputs, options = inputs_for("Llama", rows), {"do_sample": False, **STATEFUL[name]}
    if options.pop("negative", False):
        options |= {"negative_prompt_ids": inputs["input_ids"].flip(1), "negative_prompt_attention_mask": inputs["attention_mask"].flip(1)}
    expected = model.generate(**inputs, max_new_tokens=TOKENS, **options)
    assert torch.equal(not_drafted(model, inputs, drafter, "LogitsProcessor", **options), expected)


class Parity(LogitsProcessor):
    """A function of one padded row."""

    def __call__(self, input_ids, scores):
        return scores + (input_ids.sum(1, keepdim=True) % 2) * 5 * (torch.arange(scores.shape[-1]) % 2)


class LongEnough(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.sum(1) > 500


@EACH_BATCH
@pytest.mark.parametrize("eos", [2, None])
def test_what_is_vouched_for_is_drafted_for(model, drafter, rows, eos):
    inputs, options = inputs_for("Llama", rows), {"do_sample": False, "eos_token_id": eos, "pad_token_id": 0}
    own = {"logits_processor": LogitsProcessorList([Parity()]), "stopping_criteria": StoppingCriteriaList([LongEnough()])}
    expected = model.generate(**inputs, max_new_tokens=TOKENS, **options, **own)
    for tree in TREES:
        assert torch.equal(drafted(model, inputs, drafter, tree, stateless=(Parity, LongEnough), **options, **own), expected), tree


# --- stopping ---------------------------------------------------------------------------------------------------------


@EACH_BATCH
@pytest.mark.parametrize("tree", TREES)
def test_lengths_are_those_of_generate(model, drafter, rows, tree):
    inputs = inputs_for("Llama", rows)
    how = mmspec.text.speculate(drafter, draft_length=3, tree=tree)
    for options in (
        {"max_length": 20},
        {"max_length": 13},
        {},
        {"stopping_criteria": StoppingCriteriaList([criteria.MaxLengthCriteria(15)])},
    ):
        expected = model.generate(**inputs, do_sample=False, **options)
        assert torch.equal(model.generate(**inputs, do_sample=False, **options, custom_generate=how), expected)


def test_no_time_stops_after_one_round(model, drafter):
    for rows in (1, 3):
        out = drafted(model, inputs_for("Llama", rows), drafter, do_sample=False, max_time=1e-9)
        assert out.shape[1] == model.generate(**inputs_for("Llama", rows), do_sample=False, max_new_tokens=TOKENS, max_time=1e-9).shape[1]


# --- seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
def test_without_a_seed_calls_differ_and_manual_seed_repeats_them(model, drafter, plain):
    inputs = inputs_for("Llama", 3)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": TOKENS, "custom_generate": mmspec.text.speculate(drafter, draft_length=3)}
    options |= {"logits_processor": LogitsProcessorList([Idle()])} if plain else {}

    def pair():
        torch.manual_seed(0)
        return [model.generate(**inputs, **options) for _ in range(2)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (one, two), (three, four) = pair(), pair()
    assert not torch.equal(one, two)
    assert torch.equal(one, three)
    assert torch.equal(two, four)


def test_greedy_decoding_leaves_the_generator_alone(model, drafter):
    inputs = inputs_for("Llama", 1)
    before = torch.get_rng_state()
    drafted(model, inputs, drafter, do_sample=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_repeats_itself(model, drafter):
    one, two = (drafted(model, inputs_for("Llama", 3), drafter, seed=4, do_sample=True) for _ in range(2))
    assert torch.equal(one, two)


def test_returned_rows_have_noise_of_their_own(model, drafter):
    inputs = inputs_for("Llama", 1)
    out = drafted(model, inputs, drafter, seed=4, do_sample=True, top_k=0, num_return_sequences=3, encoder_repetition_penalty=1.2)
    assert len(set(map(tuple, out.tolist()))) == 3
    first = {"logits_processor": LogitsProcessorList([Idle()]), "encoder_repetition_penalty": 1.2, "top_k": 0}
    expected = not_drafted(model, inputs, drafter, "Idle", seed=4, do_sample=True, num_return_sequences=3, **first)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("accept", ["token", "coupled", "match", "block", "greedy"])
@pytest.mark.parametrize("rows", [1, 3])
def test_without_sampling_every_exact_rule_is_greedy(model, drafter, accept, rows):
    inputs = inputs_for("Llama", rows)
    how = mmspec.text.speculate(drafter, accept=accept, draft_length=3)
    expected = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    assert torch.equal(model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, custom_generate=how), expected)
