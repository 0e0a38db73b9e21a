"""The name of a model's cache: `past_key_values` until transformers 5.23, `cache` since 5.24; one module of mmspec knows it."""

import ast
import logging
import warnings
from inspect import signature
from pathlib import Path

import pytest
import torch
import transformers as hf
from transformers.modeling_outputs import BaseModelOutputWithPast, Seq2SeqLMOutput

import mmspec
from mmspec.models.compat import cache_name
from mmspec.models.compat.cache_name import CACHE, CALLERS_NAMES, cache_keyword, cache_name_among, cache_name_of, cache_of
from mmspec.models.compat.mixers import without_attention
from tests.conftest import CACHE_WARNING, llama
from tests.families import FAMILIES, build
from tests.hybrids import small
from tests.sizes import STATES
from tests.sweep.causal import make

PACKAGE = Path(mmspec.__file__).parent
RENAMED = pytest.mark.skipif(CACHE != "cache", reason="transformers before 5.24 takes one name")


# --- what the installed transformers calls it -------------------------------------------------------------------------


def test_models_layers_and_outputs_have_one_name():
    model = llama(1, 0)
    for module in (model, model.model, model.model.layers[0], model.model.layers[0].self_attn):
        assert CACHE in signature(module.forward).parameters
        assert cache_keyword(module, 7) == {CACHE: 7}
    for kind in (BaseModelOutputWithPast, Seq2SeqLMOutput):
        assert CACHE in signature(kind).parameters
    assert cache_name_of(build(FAMILIES["BART"])) == cache_name_of(build(FAMILIES["Whisper"])) == CACHE
    assert cache_name_of(make("OpenAIGPTLMHeadModel")) is None


@pytest.mark.skipif(not STATES, reason="needs transformers 5.23")
@pytest.mark.parametrize("name", ["Mamba-2", "Falcon-Mamba", "Qwen3-Next", "LFM2"])
def test_models_with_states_go_on_from_the_cache_in_their_output(name):
    model = small(name)
    out = model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=True)
    again = model(input_ids=torch.tensor([[8]]), use_cache=True, **cache_keyword(model, cache_of(out)))
    whole = model(input_ids=torch.tensor([[5, 6, 7, 8]]), use_cache=False)
    assert cache_of(again) is cache_of(out)
    assert torch.allclose(again.logits[:, -1], whole.logits[:, -1], atol=1e-4)
    assert cache_of(whole) is None
    assert without_attention(model) == ("Mamba" in name)


def test_names_among_arguments():
    assert cache_name_among({"attention_mask": None, CACHE: None}) == CACHE
    assert cache_name_among({"past_key_values"}) == "past_key_values"
    assert cache_name_among({"cache_params"}) == "cache_params"
    assert cache_name_among(()) == CACHE
    assert cache_of(object()) is None


# --- classes written for an older transformers ------------------------------------------------------------------------


class Older(hf.LlamaForCausalLM):
    """A model with the name of before 5.24 in its signature."""

    def forward(self, input_ids=None, past_key_values=None, attention_mask=None, position_ids=None, **more):
        more[CACHE] = past_key_values
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **more)

    def get_decoder(self):
        return self


@pytest.mark.parametrize("drafter", [None, "lookup"])
def test_a_class_with_the_old_name_is_driven(drafter):
    model = llama(2, 0)
    older = Older(model.config).eval()
    older.load_state_dict(model.state_dict())
    assert cache_name_of(older) == "past_key_values"
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 5, 6]])}
    found = mmspec.text.generate(older, inputs, drafter, max_new_tokens=12)
    expected = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert found.tokens[0].tolist() == expected[0, 5:].tolist()


# --- no other module names it -----------------------------------------------------------------------------------------


def named(source: str) -> set[int]:
    """Lines of `source` that name the cache of a model as text, an attribute, a parameter or a keyword argument; comments may."""
    found = set()
    tree = ast.parse(source)
    documented = {node.body[0].value for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list) and _documented(node)}
    for node in ast.walk(tree):
        names = [getattr(node, part, None) for part in ("id", "attr", "arg", "value")]
        if node not in documented and any(isinstance(name, str) and name.startswith(CALLERS_NAMES[1:]) for name in names):
            found.add(getattr(node, "lineno", 0))
    return found


def _documented(node) -> bool:
    first = node.body[0] if node.body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def test_one_module_names_it():
    own = Path(cache_name.__file__)
    assert named(own.read_text(encoding="utf-8"))
    offenders = {path.name: named(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py") if path != own}
    assert {name for name, lines in offenders.items() if lines} == set()


@pytest.mark.parametrize(
    "planted",
    [
        "model(ids, past_key_values=cache)",
        "out.past_key_values.layers",
        "takes_argument(model, 'past_key_values')",
        "def forward(x, cache_params=None): ...",
        "past_key_values_length = 3",
    ],
)
def test_a_planted_name_is_found(planted):
    assert named(f'"""A module."""\nimport torch\n{planted}') == {3}


# --- no warning comes from mmspec's own calls -------------------------------------------------------------------------


@RENAMED
def test_the_old_name_is_an_error_in_this_suite():
    """The filters of conftest.py and pyproject.toml hold in every test."""
    model, cache = llama(1, 0), hf.DynamicCache()
    with pytest.raises(FutureWarning, match="past_key_values"):
        model(torch.tensor([[5]]), past_key_values=cache)
    with pytest.raises(AssertionError, match="deprecated"):
        _ = model(torch.tensor([[5]])).past_key_values


@RENAMED
def test_transformers_warns_as_the_filters_expect():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        llama(1, 0)(torch.tensor([[5]]), past_key_values=hf.DynamicCache())
    assert [str(each.message)[: len("`past_key_values` is deprecated")] for each in seen] == ["`past_key_values` is deprecated"]
    assert logging.getLogger("transformers.utils.generic").filters
    assert CACHE_WARNING.startswith("`past_key_values`")
