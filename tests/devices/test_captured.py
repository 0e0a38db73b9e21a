"""Captured pictures, speech and recommendations: the same output as uncaptured, one graph a shape, fixed shapes and addresses."""

from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmspec import recsys, speech, vision
from mmspec.models.compat.compiler import reset_compiler
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import Captured, HFTarget
from mmspec.speech.families.csm import CsmModel
from tests import beam_world
from tests.devices.cases import HISTORIES, SHOP, codes_model, muted
from tests.devices.runs import plain
from tests.speech import small_csm, small_delay, small_models
from tests.vision.small_models import CASES as PICTURES

BACKENDS = ("eager", "aot_eager")


@contextmanager
def compiling(monkeypatch: Any, backend: str = "eager"):
    """Inside, `torch.compile` uses `backend`. Yields the counters of graphs."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: real(model, backend=backend, fullgraph=True, dynamic=False))
    reset_compiler()
    torch._dynamo.utils.counters.clear()
    yield torch._dynamo.utils.counters["stats"]
    monkeypatch.undo()


def picture(name: str, adapter: Any, **options: Any) -> Any:
    case = PICTURES[name]
    guidance = 2.0 if case.guided else None
    return vision.generate(adapter, case.prompts(2), method="jacobi", window=4, guidance=guidance, seed=3, **options).tokens


FORWARDS = [*((name, "eager") for name in PICTURES if name != "imagegpt"), ("llamagen-class", "aot_eager"), ("janus", "aot_eager")]


@pytest.mark.parametrize(("name", "backend"), FORWARDS)
def test_pictures_are_those_of_the_uncaptured_model_by_one_graph(name, backend, monkeypatch):
    adapter = PICTURES[name].make()
    expected = plain(picture(name, adapter))
    with compiling(monkeypatch, backend) as counted:
        assert plain(picture(name, adapter, capture=True)) == expected
        assert counted["unique_graphs"] == 1
        assert plain(picture(name, adapter, capture=True)) == expected  # a second request compiles nothing
        assert counted["unique_graphs"] == 1


@pytest.mark.parametrize("guidance", [None, 2.5])
@pytest.mark.parametrize("method", ["plain", "jacobi", "scd", "sjd-pac", "block", "gsd"])
def test_methods_that_draft_from_the_target(method, guidance, monkeypatch):
    window = {"window": 4} if vision.METHODS[method].windowed else {}
    options = {"method": method, "guidance": guidance, "seed": 3} | window
    expected = vision.generate(codes_model(), [0, 1], **options).tokens
    with compiling(monkeypatch) as counted:
        assert torch.equal(vision.generate(codes_model(), [0, 1], capture=True, **options).tokens, expected)
        assert counted["unique_graphs"] >= 1


SPEECH = {
    "lookup": lambda: (small_models.speaker(), ["one", "two three"], "lookup"),
    "model": lambda: (small_models.speaker(), ["one", "two three"], small_models.speaker(layers=1, seed=1)),
    "heads": lambda: (small_models.speaker(), ["one", "two three"], small_models.heads(small_models.speaker())),
    "frames": lambda: (muted(CsmModel(small_csm.csm())), small_csm.prompts(2), None),
    "guided frames": lambda: (small_delay.dia(mute=True), ["ab", "c"], None),
}


@pytest.mark.parametrize(("name", "tree"), [*((name, None) for name in SPEECH), ("model", (2, 2)), ("heads", (3, 2))])
def test_sound_is_that_of_the_uncaptured_model(name, tree, monkeypatch):
    options = {"seed": 3, "max_seconds": {"frames": 1.0, "guided frames": 0.4}.get(name, 0.1), "draft_length": 3, "tree": tree}
    expected = speech.synthesize(*SPEECH[name](), **options).tokens
    with compiling(monkeypatch) as counted:
        assert torch.equal(speech.synthesize(*SPEECH[name](), capture=True, **options).tokens, expected)
        assert counted["unique_graphs"] >= 1


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_items_are_those_of_the_uncaptured_model_by_one_graph_a_level(family, drafted, monkeypatch):
    model = beam_world.make(family)
    options = {"k": 4, "catalogue": SHOP, "drafter": beam_world.perturbed(model, 0.05) if drafted else None}
    expected = recsys.recommend(model, HISTORIES, **options)
    with compiling(monkeypatch) as counted:
        out = recsys.recommend(model, HISTORIES, capture=True, **options)
        assert out.items == expected.items
        assert 1 <= counted["unique_graphs"] <= SHOP.levels


# --- shapes and addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", [None, 2.5, [2.5, 1.5]], ids=["alone", "guided", "guided by row"])
@pytest.mark.parametrize("method", ["plain", "jacobi"])
def test_rounds_of_pictures_keep_shapes_and_addresses(method, guidance, monkeypatch):
    """With guidance the captured forward holds two rows a picture."""
    shapes, places = set(), set()
    forward, point = Captured.forward, SlotCache.point

    def noted(self: Any, layout: Any, cache: Any, *rest: Any, **more: Any) -> Any:
        if not more["prompt"]:
            shapes.add(tuple(tuple(part.shape) for part in (layout.ids, layout.positions, layout.slots, layout.visible)))
            places.update(store.data_ptr() for layer in cache.slot_layers for store in (layer.keys, layer.values))
        return forward(self, layout, cache, *rest, **more)

    monkeypatch.setattr(Captured, "forward", noted)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    adapter = codes_model()
    window = {"window": 4} if method == "jacobi" else {}
    vision.generate(adapter, [0, 1], method=method, guidance=guidance, seed=3, capture=True, **window)
    assert len(shapes) == 1
    assert {part[0] for part in shapes.pop()} == {2 if guidance is None else 4}
    assert len(places) == 2 * adapter.layers
    assert point is SlotCache.point


def test_a_forward_that_ignores_the_compiled_one_is_seen(monkeypatch):
    """The mutant runs the plain forward: its output is right, and no graph is made."""
    of = Captured.of
    monkeypatch.setattr(Captured, "of", lambda *parts: (lambda made: replace(made, compiled=made.plain))(of(*parts)))
    with compiling(monkeypatch) as counted:
        vision.generate(codes_model(), [0], method="plain", capture=True)
        assert counted["unique_graphs"] == 0


# --- refusals -------------------------------------------------------------------------------------------------------------

REFUSED = {
    "rows": (lambda: vision.generate(codes_model(), [0], method="zipar", capture=True), "writes rows side by side"),
    "states": (lambda: vision.generate(codes_model(), [0], method="eagle", capture=True), "captured LlamaGen returns no hidden states"),
    "own layers": (lambda: picture("imagegpt", PICTURES["imagegpt"].make(), capture=True), "cannot be captured"),
    "positions": (
        lambda: speech.synthesize(small_delay.musicgen(mute=True), small_delay.music_prompts(1), max_seconds=0.2, capture=True),
        "cannot be captured",
    ),
    "a number": (lambda: vision.generate(codes_model(), [0], capture=1), "capture is 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_refused_in_one_line(name):
    call, words = REFUSED[name]
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_captured_target_runs_the_process_copy():
    adapter = codes_model()
    captured = HFTarget(adapter.model, adapter).capture(64, backend="eager", mode=None).captured
    assert captured.root is not adapter.model
    assert not captured.states
