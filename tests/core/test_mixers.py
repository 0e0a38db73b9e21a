"""Canaries for what `mmspec.models.compat` assumes of mixers: each fails when a release of transformers no longer works so."""

import inspect
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.minimax.modeling_minimax import MiniMaxCache

from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.compat.mixer_cache import MixerCache, States, minimax_cache
from mmspec.models.compat.mixers import FROM_ZERO, drives_states, limit_changes, mixers_of
from mmspec.models.module_copy import own_copy
from mmspec.models.recurrent.mixer_run import MixerRun
from mmspec.models.slot_cache import SlotCache
from tests.conftest import llama
from tests.hybrids import MAKERS, small
from tests.sizes import STATES

NEW = pytest.mark.skipif(not STATES, reason="needs transformers 5.23")

WIDTH, COLUMNS = 32, 7


def first_run(name: str) -> tuple[MixerRun, Any]:
    """The first mixer of a family, and its module, without limits of time steps."""
    model = own_copy(small(name))
    mixer = mixers_of(model)[0]
    module = model.get_submodule(mixer.path)
    for changed, attribute, value in limit_changes(module):
        setattr(changed, attribute, value)
    given = cache_keyword(module, None) | ({"position_embeddings": None} if mixer.pair else {})
    return MixerRun(mixer, module, module.forward, given), module


def inputs(rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, COLUMNS, WIDTH, generator=torch.Generator().manual_seed(0))


def away(found: States, right: States) -> float:
    pairs = ((found.conv, right.conv), (found.recurrent, right.recurrent))
    return max(float((one - other).abs().max()) for one, other in pairs if one is not None and other is not None)


@NEW
@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_several_columns_behind_a_state_are_single_columns_in_turn(name):
    run, _ = first_run(name)
    x = inputs()
    whole, after = run.over(x, None)
    _, begun = run.over(x[:, :3], None)
    kept = begun.copied()
    made, then = run.over(x[:, 3:], begun)
    assert away(begun, kept) == 0, "states that were given have changed"
    assert (made - whole[:, 3:]).abs().max() < 1e-5
    assert away(then, after) < 1e-5
    state, single = begun, []
    for column in range(3, COLUMNS):
        out, state = run.over(x[:, column : column + 1], state)
        single.append(out)
    assert (torch.cat(single, 1) - whole[:, 3:]).abs().max() < 1e-5
    assert away(state, after) < 1e-5
    assert away(begun, kept) == 0, "states that were given have changed"


@NEW
@pytest.mark.parametrize("name", ["Mamba", "Falcon-Mamba", "Jamba"])
@torch.no_grad()
def test_scans_that_begin_at_zero_are_continued(name):
    run, module = first_run(name)
    assert run.mixer.form == FROM_ZERO
    assert "mamba_selective_scan" in inspect.unwrap(type(module).forward).__code__.co_names
    x = inputs()
    whole, _ = run.over(x, None)
    _, begun = run.over(x[:, :3], None)
    (taken,) = run.given
    plain = module.forward(x[:, 3:], **{taken: MixerCache(begun.copied())})
    assert (plain - whole[:, 3:]).abs().max() > 1e-3, "transformers continues the scan itself: run these mixers as the others"
    hooked = MixerRun(run.mixer, module, lambda *args, **kwargs: run.forward(*args, **kwargs), run.given)
    assert (hooked.over(x[:, 3:], begun)[0] - whole[:, 3:]).abs().max() < 1e-5  # column by column


@NEW
@torch.no_grad()
def test_single_columns_write_in_place():
    run, module = first_run("Mamba-2")
    _, begun = run.over(inputs(), None)
    mine = begun.copied()
    (taken,) = run.given
    module.forward(inputs()[:, :1], **{taken: MixerCache(mine)})
    assert not torch.equal(mine.conv, begun.conv)
    assert not torch.equal(mine.recurrent, begun.recurrent)


def test_minimax_takes_caches_of_its_own_class_only():
    cache = minimax_cache(SlotCache)(2, 64)
    assert isinstance(cache, MiniMaxCache)
    assert len(cache) == 2
    assert cache.get_seq_length() == 0


def test_models_without_states_have_no_mixers():
    assert mixers_of(llama(1, seed=0)) == ()


def test_models_with_states_are_refused_by_name_before_the_transformers_they_need(monkeypatch):
    model = type("Tiny", (), {})()
    model.config = LlamaConfig(layer_types=["linear_attention"], num_hidden_layers=1)
    monkeypatch.setattr("transformers.__version__", "5.22.1")
    needs = r"Tiny has recurrent or convolution states, which need transformers 5\.23 or newer; this is 5\.22\.1"
    with pytest.raises(ValueError, match=needs):
        mixers_of(model)
    monkeypatch.setattr("transformers.__version__", "5.23.0.dev0")
    assert drives_states()
