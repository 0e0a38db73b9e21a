"""Every argument of `generate` and every input of a model under the drop-in: honoured, or refused in one line, and each is classified."""

import inspect
import warnings
from pathlib import Path

import peft
import pytest
import torch
from transformers import DynamicCache, GenerationConfig, GenerationMixin
from transformers.generation.streamers import BaseStreamer

import mmspec
import tests.tiny
from mmspec.models.compat.cache_name import CACHE
from mmspec.run.drop_in.arguments import ARGUMENTS, FIELDS, NO_EFFECT, REFUSALS, REFUSED, cache_reason
from tests.crossing import as_one_batch, generated_alone
from tests.drop_in_table import table
from tests.families import FAMILIES, VOCAB, build, inputs_for
from tests.text.test_drop_in import EACH_BATCH, TOKENS, TREES, built, drafted, not_drafted, perturbed, trees_of

GREEDY = {"do_sample": False}


@pytest.fixture(scope="module")
def model():
    return build(FAMILIES["Llama"])


@pytest.fixture(scope="module")
def drafter():
    return perturbed("Llama")


def plainly(model, inputs, **options):
    return model.generate(**inputs, **{"max_new_tokens": TOKENS, **GREEDY, **options})


# --- classification ---------------------------------------------------------------------------------------------------


def test_every_field_of_the_generation_config_is_classified():
    """A release that adds a field fails here; until it stands in the table a value of it is refused."""
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields == FIELDS.keys()
    assert REFUSALS.keys() == {name for name, (kind, _) in FIELDS.items() if kind == REFUSED}


def test_every_argument_of_generate_is_classified():
    named = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    assert named <= ARGUMENTS.keys()
    taken = set(inspect.signature(GenerationMixin._extract_generation_mode_kwargs).parameters) - {"self", "kwargs"}
    assert taken <= ARGUMENTS.keys()


def test_a_setting_this_version_does_not_know_is_refused(model, monkeypatch):
    class Newer(GenerationConfig):
        def __init__(self, **kwargs):
            self.swirl = kwargs.pop("swirl", None)
            super().__init__(**kwargs)

    monkeypatch.setattr("mmspec.run.drop_in.arguments.GenerationConfig", Newer)
    config = Newer(max_new_tokens=4, swirl=3)
    with pytest.raises(ValueError, match="swirl is 3: this version of mmspec does not know that setting"):
        model.generate(**inputs_for("Llama", 1), generation_config=config, custom_generate=mmspec.text.speculate())


# --- refused ----------------------------------------------------------------------------------------------------------

VALUES = {
    **{"num_beams": 3, "num_beam_groups": 2, "constraints": [1], "force_words_ids": [[1]], "penalty_alpha": 0.6, "dola_layers": "low"},
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "output_logits", "is_assistant", "use_mtp"), True),
    **{"prompt_lookup_num_tokens": 2, "assistant_early_exit": 1, "assistant_ensemble_weight": 0.5, "speculation_type": "dflash"},
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("rows", [1, 3])
def test_what_has_no_form_here_is_refused_by_name_in_one_line(model, name, rows):
    extra = {"return_dict_in_generate": True} if name.startswith("output_") else {}
    with pytest.raises(ValueError, match=f"{name} is ") as caught:
        plainly(model, inputs_for("Llama", rows), **{name: VALUES[name]}, **extra, custom_generate=mmspec.text.speculate("lookup"))
    assert "\n" not in str(caught.value)


def test_arguments_that_transformers_drops_are_refused_too(model, drafter):
    how = mmspec.text.speculate("lookup")
    with pytest.raises(ValueError, match=r"assistant_model is set: .* pass speculate"):
        plainly(model, inputs_for("Llama", 1), assistant_model=drafter, custom_generate=how)
    with pytest.raises(ValueError, match="synced_gpus is on"):
        plainly(model, inputs_for("Llama", 1), synced_gpus=True, custom_generate=how)
    with pytest.raises(ValueError, match="assistant_tokenizer is set"):
        plainly(model, inputs_for("Llama", 1), assistant_tokenizer=prompts(1)[1], custom_generate=how)


def test_padding_on_the_right_is_refused(model, drafter):
    with pytest.raises(ValueError, match=r"row 0 ends in padding, .* padding_side='left'"):
        plainly(model, inputs_for("Llama", 3, "right"), custom_generate=mmspec.text.speculate(drafter))


NOTHING = {
    **{"use_cache": False, "max_cache_len": 200, "prefill_chunk_size": 4, "disable_compile": True, "low_memory": True},
    **{"early_stopping": True, "length_penalty": 2.0, "diversity_penalty": 0.5, "num_assistant_tokens": 3, "max_matching_ngram_size": 3},
    **{"num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.9, "assistant_lookbehind": 3},
    **{"target_lookbehind": 3, "compile_config": None, "continuous_batching_config": None, "transformers_version": "5.0.0"},
}


@pytest.fixture(scope="module")
def ordinary(model):
    """Greedy output of `generate` without any further setting."""
    return plainly(model, inputs_for("Llama", 3), generation_config=GenerationConfig(pad_token_id=0, eos_token_id=2))


@pytest.mark.parametrize("name", [name for name, (kind, _) in FIELDS.items() if kind == NO_EFFECT])
def test_what_has_no_effect_has_none_in_transformers_either(model, drafter, ordinary, name):
    inputs, expected = inputs_for("Llama", 3), ordinary
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = GenerationConfig(**GREEDY, max_new_tokens=TOKENS, pad_token_id=0, eos_token_id=2, **{name: NOTHING[name]})
        assert torch.equal(model.generate(**inputs, generation_config=config), expected)
        how = mmspec.text.speculate(drafter, draft_length=3)
        assert torch.equal(model.generate(**inputs, generation_config=config, custom_generate=how), expected)


# --- a tokenizer ------------------------------------------------------------------------------------------------------


def prompts(rows: int):
    """The text mini, its drafter's name aside, and prompts of several lengths padded on the left."""
    mini = mmspec.load("text")
    texts = ["The king said that", "Once there was a poor woman who", "He went"][:rows]
    return mini.target, mini.processor, mini.processor(texts, return_tensors="pt", padding=True, padding_side="left")


@EACH_BATCH
@pytest.mark.parametrize("ends", [True, False])
def test_stop_strings(rows, ends):
    """Without an end token a row that has stopped writes on until all have: in transformers, and so here."""
    model, tokenizer, inputs = prompts(rows)
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    baseline = plainly(model, inputs)[:, inputs["input_ids"].shape[1] :]
    strings = [tokenizer.decode(line[4 + row : 7 + row])[1:-1] for row, line in enumerate(baseline)]
    options = {"stop_strings": strings, "tokenizer": tokenizer, "pad_token_id": 1} | ({} if ends else {"eos_token_id": None})
    expected = plainly(model, inputs, **options)
    assert expected.shape[1] < inputs["input_ids"].shape[1] + TOKENS
    for tree, drafter in zip(TREES, (tests.tiny.llama(), model), strict=True):
        assert torch.equal(drafted(model, inputs, drafter, tree, **GREEDY, **options), expected), tree


def test_token_healing():
    target, tokenizer, _ = prompts(1)
    inputs = tokenizer(["The girl and the bo"], return_tensors="pt")
    options = {"token_healing": True, "tokenizer": tokenizer, "max_new_tokens": 8, **GREEDY}
    expected = target.generate(inputs["input_ids"], **options)
    out = target.generate(inputs["input_ids"], **options, custom_generate=mmspec.text.speculate("lookup", draft_length=3))
    assert torch.equal(out, expected)


# --- streamers --------------------------------------------------------------------------------------------------------


class Collect(BaseStreamer):
    def __init__(self):
        self.seen, self.ended = [], 0

    def put(self, value):
        self.seen.append(value.tolist())

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("rows", [1, 3])
def test_a_streamer_is_fed_as_transformers_feeds_it(model, drafter, rows):
    inputs, one, two = inputs_for("Llama", rows), Collect(), Collect()
    plainly(model, inputs, streamer=one)
    run = drafted if rows == 1 else lambda *a, **k: not_drafted(*a, "a streamer with several rows", **k)
    run(model, inputs, drafter, **GREEDY, streamer=two)
    assert (one.seen, one.ended) == (two.seen, two.ended)


# --- what a decoder reads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_usual_positions_are_drafted_for_and_others_are_not(model, drafter, rows):
    inputs = inputs_for("Llama", rows)
    usual = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    assert torch.equal(drafted(model, inputs, drafter, **GREEDY, position_ids=usual), plainly(model, inputs))
    other = {"position_ids": usual * 2 + 1}
    expected = plainly(model, inputs, **other)
    assert not torch.equal(expected, plainly(model, inputs))
    assert torch.equal(not_drafted(model, inputs, drafter, "position_ids are given", **GREEDY, **other), expected)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("both", [False, True])
def test_embeddings_in_place_of_ids(model, drafter, rows, both):
    inputs = inputs_for("Llama", rows)
    embeds = {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]) * 1.5, "attention_mask": inputs["attention_mask"]}
    embeds |= {"input_ids": inputs["input_ids"]} if both else {}
    out = not_drafted(model, embeds, drafter, "input", **GREEDY)
    assert torch.equal(out, plainly(model, embeds))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_cache_of_the_callers(model, drafter, rows):
    """A conversation: the cache of one call goes on in the next, and is filled as transformers fills it."""

    def turns(call):
        inputs, cache = inputs_for("Llama", rows), DynamicCache(config=model.config)
        first = call(model, inputs, **{CACHE: cache})
        more = torch.cat([first, torch.full((rows, 2), 7)], 1)
        mask = torch.nn.functional.pad(inputs["attention_mask"], (0, more.shape[1] - 12), value=1)
        return call(model, {"input_ids": more, "attention_mask": mask}, **{CACHE: cache}), cache.get_seq_length()

    out, length = turns(lambda *a, **k: not_drafted(*a, drafter, f"{CACHE} is given", **GREEDY, **k))
    expected, filled = turns(plainly)
    assert torch.equal(out, expected)
    assert length == filled


@pytest.mark.parametrize("kind", ["quantized", "offloaded", "offloaded_static"])
def test_caches_that_change_the_output_or_lie_elsewhere_are_transformers_own(kind):
    assert cache_reason(GenerationConfig(cache_implementation=kind)) == f"cache_implementation is {kind!r}"
    assert all(cache_reason(GenerationConfig(cache_implementation=other)) is None for other in (None, "dynamic", "static"))


def test_a_mask_with_gaps(model, drafter):
    inputs = inputs_for("Llama", 3)
    inputs["attention_mask"][1, 4] = 0
    assert torch.equal(not_drafted(model, inputs, drafter, "gaps", **GREEDY), plainly(model, inputs))


def test_a_mask_that_is_not_given_is_read_off_the_pads(model, drafter):
    ids = {"input_ids": inputs_for("Llama", 3)["input_ids"]}
    assert torch.equal(drafted(model, ids, drafter, **GREEDY), plainly(model, ids))


@pytest.mark.parametrize("rows", [1, 3])
def test_token_types_of_a_text_model(rows):
    model, drafter, inputs = build(FAMILIES["GPT-2"]), perturbed("GPT-2"), inputs_for("GPT-2", rows)
    inputs["token_type_ids"] = torch.randint(3, VOCAB, inputs["input_ids"].shape)
    assert torch.equal(not_drafted(model, inputs, drafter, "token_type_ids is given", **GREEDY), plainly(model, inputs))


def test_a_length_beyond_the_models_positions(model, drafter):
    inputs = inputs_for("Llama", 1)
    out = not_drafted(model, inputs, drafter, "exceed the model's 128 positions", **GREEDY, max_new_tokens=120)
    assert torch.equal(out, plainly(model, inputs, max_new_tokens=120))


def test_replaced_inputs_are_seen(model, drafter, monkeypatch):
    """What PEFT does for prompt tuning: virtual tokens are slipped in while inputs are prepared."""
    usual = model.prepare_inputs_for_generation

    def prepare(input_ids, *args, **kwargs):
        found = usual(input_ids, *args, **kwargs)
        return {**found, "input_ids": (found["input_ids"] + 1) % VOCAB}

    model.prepare_inputs_for_generation = prepare
    try:
        inputs = inputs_for("Llama", 3)
        assert torch.equal(not_drafted(model, inputs, drafter, "prompt tuning", **GREEDY), plainly(model, inputs))
    finally:
        del model.prepare_inputs_for_generation


@pytest.mark.parametrize("kind", ["prompt", "prefix", "lora"])
def test_adapters_of_peft(drafter, kind):
    torch.manual_seed(3)
    config = {
        "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
        "lora": lambda: peft.LoraConfig(task_type="CAUSAL_LM", r=2, init_lora_weights=False),
    }[kind]()
    model, inputs = peft.get_peft_model(build(FAMILIES["Llama"]), config).eval(), inputs_for("Llama", 3)
    expected = plainly(model, inputs)
    assert not torch.equal(expected, plainly(build(FAMILIES["Llama"]), inputs))
    run = drafted if kind == "lora" else lambda *a, **k: not_drafted(*a, "prompt tuning", **k)
    assert torch.equal(run(model, inputs, drafter, **GREEDY), expected)


def test_numbers_that_are_none_are_mended_where_that_is_asked_for(drafter):
    model = build(FAMILIES["Llama"])
    model.lm_head.weight.data[11] = float("nan")
    inputs = inputs_for("Llama", 3)
    expected = plainly(model, inputs, remove_invalid_values=True)
    assert torch.equal(drafted(model, inputs, drafter, **GREEDY, remove_invalid_values=True), expected)
    with pytest.raises(FloatingPointError):
        drafted(model, inputs, drafter, **GREEDY)


# --- what encoders read -----------------------------------------------------------------------------------------------

ENCODER = {
    "nothing": {},
    "encoder penalty": {"encoder_repetition_penalty": 1.6},
    "no 2-gram of the encoder": {"encoder_no_repeat_ngram_size": 2},
    "no 1-gram of the encoder": {"encoder_no_repeat_ngram_size": 1},
    "penalty": {"repetition_penalty": 1.5},
    "forced": {"forced_bos_token_id": 8, "forced_eos_token_id": 9},
    "a decoder prompt": {"decoder_input_ids": torch.tensor([[0, 7, 9]])},
    "a decoder prompt and its mask": {"decoder_input_ids": torch.tensor([[0, 7, 9]]), "decoder_attention_mask": torch.ones(1, 3).long()},
    "begin": {"decoder_input_ids": torch.tensor([[0, 7, 9]]), "begin_suppress_tokens": [8, 11]},
}


@EACH_BATCH
@pytest.mark.parametrize("name", ENCODER)
@pytest.mark.parametrize("family", ["T5", "BART"])
def test_encoder_decoders(family, name, rows):
    model, inputs = built(family), inputs_for(family, rows)
    options = {key: value.expand(rows, -1) if isinstance(value, torch.Tensor) else value for key, value in ENCODER[name].items()}
    expected = plainly(model, inputs, **options)
    for tree in trees_of(ENCODER, name, rows):
        assert torch.equal(drafted(model, inputs, perturbed(family), tree, **GREEDY, **options), expected), tree


@pytest.mark.parametrize("rows", [1, 3])
def test_an_encoders_states_or_embeddings_in_place_of_ids(rows):
    model, inputs = build(FAMILIES["T5"]), inputs_for("T5", rows)
    expected, mask = plainly(model, inputs), {"attention_mask": inputs["attention_mask"]}
    states = {"encoder_outputs": model.get_encoder()(**inputs), **mask}
    embeds = {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]), **mask}
    for given in (states, embeds):
        assert torch.equal(drafted(model, given, model, **GREEDY), expected)


@pytest.mark.parametrize("family", ["T5", "BART"])
def test_a_decoder_prompt_with_padding(family):
    model, inputs = build(FAMILIES[family]), inputs_for(family, 3)
    start = model.generation_config.decoder_start_token_id
    options = {"decoder_input_ids": torch.tensor([[start, 0, 7], [start, 5, 6], [start, 0, 9]])}
    options |= {"decoder_attention_mask": torch.tensor([[1, 0, 1], [1, 1, 1], [1, 0, 1]])}
    expected = plainly(model, inputs, **options)
    assert torch.equal(not_drafted(model, inputs, model, "decoder_attention_mask leaves", **GREEDY, **options), expected)


SENSING = ["LLaVA", "Qwen2-VL", "Qwen2.5-VL", "Gemma-3 VLM", "Idefics3", "Mllama", "Qwen2-Audio", "Voxtral"]


@EACH_BATCH
@pytest.mark.parametrize("family", SENSING)
def test_pictures_and_sound_reach_the_model(family, rows):
    model, inputs = built(family), inputs_for(family, rows)
    options = {"repetition_penalty": 1.2}
    expected = plainly(model, inputs, **options)
    if family == "Mllama":  # in transformers' own batches a row depends on its neighbours' pictures; each row's new tokens by itself
        alone = generated_alone(model, inputs, max_new_tokens=TOKENS, **options)
        expected = torch.cat([inputs["input_ids"], as_one_batch(alone)], 1)
    for tree in trees_of({name: {} for name in SENSING}, family, rows):
        assert torch.equal(drafted(model, inputs, perturbed(family), tree, **GREEDY, **options), expected), tree


def test_pictures_for_several_sequences_each():
    model, inputs = build(FAMILIES["LLaVA"]), inputs_for("LLaVA", 3)
    options = {"do_sample": True, "num_return_sequences": 2, "top_k": 1}
    expected = model.generate(**inputs, max_new_tokens=TOKENS, **options)
    assert torch.equal(not_drafted(model, inputs, model, "num_return_sequences", seed=1, **options), expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_speech(rows):
    model, inputs = build(FAMILIES["Whisper"]), inputs_for("Whisper", rows)
    expected = plainly(model, inputs)
    assert torch.equal(drafted(model, inputs, perturbed("Whisper"), **GREEDY), expected)


def test_the_page_is_made_from_the_tables():
    page = Path(__file__).parents[2] / "docs" / "drop-in.md"
    assert page.read_text(encoding="utf-8").strip() == table().strip(), "run: python -m tests.drop_in_table > docs/drop-in.md"
