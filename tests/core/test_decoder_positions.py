"""How decoders of encoder-decoder models are told positions, and that nothing of it reaches the caller's model."""

import copy
import threading

import pytest
import torch
import transformers as hf
from torch import nn

import mmspec
from mmspec.models.families.decoder_positions import DecoderPositionTable, PositionIds, RelativeBias, positions_in
from mmspec.models.families.registry import family_of, positions_of
from tests.families import FAMILIES, bart, build, inputs_for, t5
from tests.sizes import Case
from tests.sweep.run import LINEAR, TREES
from tests.sweep.seq2seq import alone, batch, make, padded_right
from tests.sweep.shrink import perturbed

TOKENS = 12
NAMES = {
    "bart": "BartForConditionalGeneration",
    "led": "LEDForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "switch_transformers": "SwitchTransformersForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "bigbird_pegasus": "BigBirdPegasusForConditionalGeneration",
    "t5gemma": "T5GemmaForConditionalGeneration",
}


def own(model, inputs, **more):
    return model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, **more)


def drafted(model, inputs, **more):
    drafter = perturbed(copy.deepcopy(model))
    for options in (*LINEAR.values(), *TREES.values()):
        options = options | ({"drafter": drafter} if options.get("drafter") == "another" else {})
        yield mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, **options, **more).sequences


@pytest.mark.parametrize(
    ("name", "kind", "limit"),
    [("bart", DecoderPositionTable, 128), ("umt5", RelativeBias, None), ("t5gemma", PositionIds, 128), ("led", DecoderPositionTable, 128)],
)
def test_the_mechanism_is_read_from_the_decoder(name, kind, limit):
    model = make(name, NAMES[name])
    assert isinstance(family_of(model).positions, kind)
    assert positions_of(model) == limit


def test_a_bias_in_every_block_is_replaced_in_every_block():
    assert len(family_of(make("umt5", NAMES["umt5"])).positions.names) == 2
    assert len(family_of(build(FAMILIES["T5"])).positions.names) == 1


def test_decoders_of_unknown_form_are_refused_by_what_is_unknown():
    class Turning(nn.Module):
        def forward(self, ids):
            return ids

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_positions = Turning()

        def forward(self, input_ids):
            return input_ids

    with pytest.raises(ValueError, match="by Turning, of no known form") as caught:
        positions_in(Decoder(), "Model")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="in no known way"):
        positions_in(nn.Linear(2, 2), "Model")


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_threads_on_one_model_give_the_tokens_of_one(name):
    model, found = build(FAMILIES[name]), {}
    drafter = perturbed(copy.deepcopy(model))
    inputs = [inputs_for(name, 1, seed=seed) for seed in range(3)]
    options = [{"draft_length": 4, "drafter": drafter}, {"tree": (3, 2), "drafter": drafter}, {}]
    expected = [mmspec.text.generate(model, given, max_new_tokens=TOKENS).sequences.tolist() for given in inputs]
    before = [set(vars(module)) for module in model.modules()]

    def work(index):
        found[index] = [
            mmspec.text.generate(model, inputs[index], max_new_tokens=TOKENS, **options[index]).sequences.tolist() for _ in range(8)
        ]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: [expected[index]] * 8 for index in range(3)}
    assert [set(vars(module)) for module in model.modules()] == before


@pytest.mark.parametrize("make_model", [t5, bart])
def test_the_callers_model_is_not_changed_while_it_runs(make_model):
    model, seen = build(Case(make_model, "")), []
    given = inputs_for("T5", 1)
    classes = {type(module) for module in model.get_decoder().modules()}

    def watch(step):
        seen.extend(name for module in model.modules() for name in vars(module) if name in ("forward", "compute_bias"))
        seen.extend(module for module in model.get_decoder().modules() if module._forward_pre_hooks or module._forward_hooks)

    mmspec.text.generate(model, given, max_new_tokens=TOKENS, drafter="lookup", on_step=watch)
    assert not seen
    assert classes


def test_one_column_of_led_sees_no_stale_slot():
    model = make("led", NAMES["led"])
    expected = own(model, alone(model, 1))[:, 1:]
    for found in drafted(model, alone(model, 1)):
        assert torch.equal(found, expected)


def test_experts_with_a_capacity_of_one_keep_every_drafted_token():
    model = make("switch_transformers", NAMES["switch_transformers"])
    for module in model.get_decoder().modules():
        if hasattr(module, "expert_capacity"):
            module.expert_capacity = 1
    expected = own(model, alone(model, 1))[:, 1:]
    for found in drafted(model, alone(model, 1)):
        assert torch.equal(found, expected)
    assert all(getattr(module, "expert_capacity", 1) == 1 for module in model.get_decoder().modules())


def test_second_experts_at_random_are_refused():
    model = make("nllb-moe", "NllbMoeForConditionalGeneration")
    for module in model.modules():
        if hasattr(module, "second_expert_policy"):
            module.second_expert_policy = "random"
    with pytest.raises(ValueError, match="second experts at random"):
        mmspec.text.generate(model, alone(model, 0), max_new_tokens=4)


def test_a_short_prompt_leaves_a_block_sparse_encoder_as_it_was():
    model = make("bigbird_pegasus", NAMES["bigbird_pegasus"])
    fresh = copy.deepcopy(model)
    mmspec.text.generate(model, alone(model, 0), max_new_tokens=4)
    assert model.get_encoder().attention_type == "block_sparse"
    expected = own(fresh, alone(model, 1))[:, 1:]
    assert torch.equal(mmspec.text.generate(model, alone(model, 1), max_new_tokens=TOKENS).sequences, expected)


@pytest.mark.parametrize("forced", [None, 7])
def test_the_decoders_opening_is_that_of_transformers(forced):
    """A start token in front of decoder ids that lack it, a language forced behind it, a shortest length, and pads between words."""
    model = make("m2m_100", NAMES["m2m_100"])
    settings = model.generation_config
    settings.forced_bos_token_id, settings.min_length, settings.bad_words_ids = forced, 6, [[33]]
    for given in (None, torch.tensor([[9, 12]]), torch.tensor([[1, 9, 12]])):
        inputs = alone(model, 1) | ({} if given is None else {"decoder_input_ids": given})
        prompt = 1 if given is None else 3
        expected = own(model, inputs)[:, prompt:]
        for found in drafted(model, inputs):
            assert torch.equal(found, expected)


def test_padding_ids_that_a_decoder_writes_stand_where_transformers_puts_them():
    model = make("m2m_100", NAMES["m2m_100"])
    model.final_logits_bias = None
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    model.lm_head.weight.data[0] *= 4  # padding, often
    expected = own(model, alone(model, 1))[:, 1:]
    assert 0 < int((expected == 0).sum()) < TOKENS
    for found in drafted(model, alone(model, 1)):
        assert torch.equal(found, expected)


def test_a_decoder_that_counts_from_behind_its_padding_id():
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    sizes |= {"max_position_embeddings": 64, "pad_token_id": 1, "type_vocab_size": 1}
    encoder = hf.RobertaConfig(**sizes)
    decoder = hf.RobertaConfig(**sizes, is_decoder=True, add_cross_attention=True)
    model = build(Case(lambda: hf.EncoderDecoderModel(hf.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)), ""))
    settings = model.generation_config
    settings.decoder_start_token_id, settings.pad_token_id, settings.eos_token_id = 3, 1, 2
    assert positions_of(model) == 62
    inputs = padded_right([alone(model, row) for row in range(3)])
    for found in drafted(model, alone(model, 1)):
        assert torch.equal(found, own(model, alone(model, 1))[:, 1:])
    rows = [own(model, alone(model, row))[0, 1:].tolist() for row in range(3)]
    assert mmspec.text.generate(model, inputs, max_new_tokens=TOKENS).sequences.tolist() == rows


def test_a_batch_gives_each_row_what_it_gets_alone():
    model = make("m2m_100", NAMES["m2m_100"])
    rows = [own(model, alone(model, row))[0, 1:].tolist() for row in range(3)]
    for found in drafted(model, batch(model, 3)):
        assert found.tolist() == rows
