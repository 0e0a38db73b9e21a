"""Models that are unfit to generate with are refused in one line: train mode, weights without data, no head, bidirectional, NaN."""

import pytest
import torch
import transformers as hf

import mmspec
from tests.families import FAMILIES, LLAMA, VOCAB, Case, build, inputs_for


def llama(**changes):
    return build(Case(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**{**LLAMA, **changes})), ""))


def refused(words, model, drafter=None, kind=ValueError, **options):
    with pytest.raises(kind, match=words) as caught:
        mmspec.text.generate(model, inputs_for("Llama", 3), drafter=drafter, max_new_tokens=8, **options)
    assert "\n" not in str(caught.value)


def test_train_mode_is_refused_for_targets_drafters_and_submodules():
    model, other = llama(attention_dropout=0.5), llama()
    refused(
        r"the drafter \(LlamaForCausalLM\) is in train mode, where dropout makes outputs random: call drafter.eval", other, model.train()
    )
    refused(r"the model \(LlamaForCausalLM\) is in train mode", model, other)
    with pytest.raises(ValueError, match="in train mode"):
        model.generate(**inputs_for("Llama", 3), max_new_tokens=4, custom_generate=mmspec.text.speculate())
    model.eval().model.layers[1].self_attn.train()
    refused("model.layers.1.self_attn of the model .LlamaForCausalLM. is in train mode", model)
    gpt = build(FAMILIES["GPT-2"])
    gpt.transformer.h[0].mlp.dropout.train()
    refused("transformer.h.0.mlp.dropout of the model", gpt)
    gpt.transformer.h[0].mlp.dropout.p = 0.0  # changes nothing
    mmspec.text.generate(gpt, inputs_for("Llama", 1), max_new_tokens=2)


def test_weights_without_data_are_refused():
    model = llama()
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.empty(64, 32, device="meta"))
    refused("model.layers.0.mlp.up_proj of the model .LlamaForCausalLM. has no data", model)
    refused("model.layers.0.mlp.up_proj of the drafter", llama(), model)


BERT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": VOCAB}


def test_models_without_a_head_and_bidirectional_ones_are_refused():
    for headless in (
        hf.LlamaModel(hf.LlamaConfig(**LLAMA)),
        hf.BertForMaskedLM(hf.BertConfig(**BERT)),
        hf.BertModel(hf.BertConfig(**BERT)),
    ):
        words = f"{type(headless).__name__} is not a transformers generation model .it has no language model head"
        refused(words, headless.eval())
        refused(words, llama(), headless.eval())
    refused(r"\(BertLMHeadModel\) is a bidirectional encoder \(is_decoder is False", hf.BertLMHeadModel(hf.BertConfig(**BERT)).eval())
    refused(r"drafter \(BertLMHeadModel\) is a bidirectional", llama(), hf.BertLMHeadModel(hf.BertConfig(**BERT)).eval())
    refused("is_causal is False", llama(is_causal=False))
    gemma = hf.Gemma2Config(**LLAMA, head_dim=8, use_bidirectional_attention=True)
    refused("use_bidirectional_attention is True", hf.Gemma2ForCausalLM(gemma).eval())
    mmspec.text.generate(build(FAMILIES["GPT-NeoX"]), inputs_for("Llama", 1), max_new_tokens=2)  # says is_decoder and does not read it


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "accept": "token"}, {"tree": (2, 2)}])
def test_a_drafter_whose_logits_are_nan_is_named(options):
    model, broken = llama(), llama()
    broken.model.norm.weight.data.fill_(float("nan"))
    refused(
        "the drafter's logits hold NaN or infinity in row 0 .LlamaForCausalLM", model, broken, FloatingPointError, draft_length=3, **options
    )


def test_a_drafter_that_gives_nan_for_one_token_spoils_no_token_rule():
    model, broken = llama(eos_token_id=None), llama(eos_token_id=None)
    torch.manual_seed(0)
    said = mmspec.text.generate(model, inputs_for("Llama", 3), max_new_tokens=12, temperature=1.0).sequences
    broken.model.embed_tokens.weight = torch.nn.Parameter(broken.model.embed_tokens.weight.clone())
    broken.model.embed_tokens.weight.data[said[1, 5]] = float("nan")
    with pytest.raises(FloatingPointError, match="the drafter's logits"):
        mmspec.text.generate(
            model, inputs_for("Llama", 3), drafter=broken, max_new_tokens=40, temperature=1.0, accept="token", draft_length=3
        )


def test_a_compiled_model_is_said_to_run_uncompiled():
    model, inputs = build(FAMILIES["Llama"]), inputs_for("Llama", 1)
    expected = mmspec.text.generate(model, inputs, max_new_tokens=4)
    with pytest.warns(UserWarning, match="pass the plain model and capture=True"):
        found = mmspec.text.generate(torch.compile(model), inputs, max_new_tokens=4)
    assert torch.equal(found.sequences, expected.sequences)
