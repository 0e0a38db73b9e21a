"""The output head's product: the same logits by either way, tokens as `generate`, and the caller's model unchanged."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.models.compat import output_head, packed_product
from mmspec.models.compat.output_head import cpu_maker, head_product, product_of
from mmspec.text import generate
from tests.drafters.runs import prompt_of


@pytest.fixture(scope="module")
def wide():
    torch.manual_seed(0)
    sizes = {"vocab_size": 32000, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=128)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    return model


WAYS = {"transposed": "AuthenticAMD", "packed": "GenuineIntel", "padded": "GenuineIntel"}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """What takes the place of `F.linear`, on the processor where it does."""
    if request.param == "packed" and not packed_product.packs():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(output_head, "cpu_maker", lambda: WAYS[request.param])
    monkeypatch.setattr(output_head, "packs", lambda: request.param == "packed")
    return request.param


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 5), (2, 2), (3, 1), (1, 6), (2, 9)])
@pytest.mark.parametrize("values", [32000, 131072, 262144])
def test_all_products_agree(shape, values, way):
    x, weight = torch.randn(*shape, 8), torch.randn(values, 8)
    torch.testing.assert_close(head_product(x, weight), F.linear(x, weight))
    assert head_product(x, weight).is_contiguous()


def test_the_rule_reads_sizes_and_the_maker_only(monkeypatch):
    large, middle, small = (torch.empty(values, 4) for values in (262144, 32000, 31999))
    monkeypatch.setattr(output_head, "cpu_maker", lambda: "AuthenticAMD")
    assert [product_of(rows, large) == "transposed" for rows in (1, 2, 5, 8, 9, 17)] == [True, True, True, True, False, False]
    assert [product_of(rows, middle) == "transposed" for rows in (1, 2, 5, 6)] == [False, True, True, False]
    assert all(product_of(rows, weight) == "linear" for rows in (1, 2, 5) for weight in (small, large.bfloat16(), large.to("meta")))
    monkeypatch.setattr(output_head, "cpu_maker", lambda: "GenuineIntel")
    monkeypatch.setattr(output_head, "packs", lambda: False)
    assert [product_of(rows, middle) for rows in (1, 6, 7, 15, 16)] == ["linear", "linear", "padded", "padded", "linear"]
    monkeypatch.setattr(output_head, "packs", lambda: True)
    assert [product_of(rows, middle) for rows in (1, 3, 4, 64, 65)] == ["linear", "linear", "packed", "packed", "linear"]
    monkeypatch.setattr(output_head, "_MOST_PACKED", middle.nbytes - 1)
    assert [product_of(rows, middle) for rows in (4, 7)] == ["linear", "padded"]
    assert all(product_of(rows, weight) == "linear" for rows in (7, 15) for weight in (small, large.bfloat16(), large.to("meta")))
    monkeypatch.setattr(output_head, "cpu_maker", lambda: "")
    assert all(product_of(rows, large) == "linear" for rows in range(1, 20))


def test_the_makers_name_is_read_once():
    assert cpu_maker() is cpu_maker()
    assert isinstance(cpu_maker(), str)


@torch.no_grad()
@pytest.mark.parametrize("rows", range(1, 18))
def test_torchs_operators_for_packed_weights_are_where_they_were(rows):
    x, weight = torch.randn(rows, 64), torch.randn(500, 64)
    found = packed_product.PackedWeight(weight).product(x)
    torch.testing.assert_close(found, F.linear(x, weight))
    assert found.is_contiguous()


def test_a_copy_is_kept_while_the_weight_is_as_it_was_and_dropped_with_it():
    before = len(packed_product._copies)
    weight = torch.nn.Parameter(torch.randn(500, 64))
    copy = packed_product.packed_copy(weight)
    packed_product.drop_changed_copy(weight)
    assert packed_product.packed_copy(weight) is copy
    weight.data[499, 63] += 1  # counted by no version of the tensor
    packed_product.drop_changed_copy(weight)
    assert packed_product.packed_copy(weight) is not copy
    del weight
    gc.collect()
    assert len(packed_product._copies) == before


def test_weights_written_to_between_two_calls_are_read(wide, monkeypatch):
    monkeypatch.setattr(output_head, "cpu_maker", lambda: "GenuineIntel")
    model, inputs = copy.deepcopy(wide), prompt_of([5, 6, 7, 5, 6], [9, 8, 9])
    settings = {"drafter": "lookup", "draft_length": 3, "max_new_tokens": 12}
    generate(model, inputs, **settings)
    model.lm_head.weight.data.neg_()
    assert torch.equal(generate(model, inputs, **settings).tokens, generate(copy.deepcopy(model), inputs, **settings).tokens)


@pytest.mark.parametrize("drafter", [None, "lookup", "jacobi", "early-exit"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_those_of_generate_and_the_model_is_unchanged(wide, drafter, temperature, way, monkeypatch):
    inputs, calls = prompt_of([5, 6, 7, 5, 6], [9, 8, 9]), []
    settings = {"max_new_tokens": 20, "draft_length": 3 if way == "padded" else 2, "temperature": temperature, "seed": 4}
    real = output_head.head_product
    monkeypatch.setattr(
        output_head, "head_product", lambda x, weight: calls.append(product_of(x[..., 0].numel(), weight)) or real(x, weight)
    )
    out = generate(wide, inputs, drafter, **settings)
    assert calls
    assert drafter is None or way in calls
    assert "forward" not in vars(wide.lm_head)
    monkeypatch.setattr(output_head, "product_of", lambda rows, weight: "linear")
    assert torch.equal(out.tokens, generate(wide, inputs, drafter, **settings).tokens)
    if temperature == 0.0:
        whole = wide.generate(**inputs, do_sample=False, max_new_tokens=20, pad_token_id=0, eos_token_id=None)
        assert torch.equal(whole[:, inputs["input_ids"].shape[1] :], out.tokens)
