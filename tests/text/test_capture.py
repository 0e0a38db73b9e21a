"""What CUDA graphs and torch.compile need, proved without a GPU: fixed shapes, fixed addresses, one host sync a round, no graph break."""

import copy
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, drawn, most_likely, top
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.drafters.views.base import view_of
from mmspec.models.compat.compiler import reset_compiler
from mmspec.models.families.base import DecoderOnly
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from tests.companions import llama, perturbed
from tests.families import FAMILIES, build, inputs_for
from tests.sizes import VOCAB

SYNCS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2", "unique_dim"}


class Watch(TorchDispatchMode):
    """Counts operations that would make a GPU's host wait, and remembers the shapes that went through."""

    def __init__(self):
        super().__init__()
        self.syncs, self.shapes = 0, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        boolean_index = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.syncs += name in SYNCS or boolean_index
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.shapes[(name, tuple(out.shape))] += 1
        return out


@contextmanager
def counting_tolist(watch: Watch, monkeypatch):
    """`tolist` and `cpu` do not go through dispatch on a CPU tensor."""
    for method in ("tolist", "cpu", "numpy"):
        original = getattr(torch.Tensor, method)

        def counted(self, *args, _original=original, **kwargs):
            watch.syncs += 1
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, method, counted)
    with watch:
        yield
    monkeypatch.undo()


DRAFTS = {
    "chain": (Chain(most_likely), Greedy()),
    "tree": (StaticTree(Template.branching((3, 2, 1)), top), Greedy()),
    "coupled": (Chain(drawn), Coupled()),
}


SEERS = [("tree", "Qwen3-VL"), ("chain", "Gemma-3 VLM"), ("tree", "PaliGemma 2"), ("chain", "Mllama")]


@pytest.mark.parametrize(("kind", "name"), [*((kind, "Llama") for kind in DRAFTS), *SEERS])
def test_rounds_keep_shapes_addresses_and_sync_once(kind, name, monkeypatch):
    shape, rule = DRAFTS[kind]
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    distributions = pipeline(temperature=0.8, top_k=20) if rule.coupled else pipeline()
    target = HFTarget(model, family_of(model), distributions, reserve=100, static=True)
    drafter, noise = ModelDrafter(target, shape, view_of(target, model)), Noise.from_seed(0, 3)
    steps = decode(target, drafter, rule, inputs, stopping=DefaultStopping(3, 60), noise=noise, control=Fixed(3))
    sessions = []
    begin = HFTarget.begin
    monkeypatch.setattr(HFTarget, "begin", lambda self, given: sessions.append(begin(self, given)) or sessions[-1])
    next(steps), next(steps)
    addresses = [layer.keys.data_ptr() for session, _ in sessions for layer in session.cache.layers]
    seen = []
    for _ in range(4):
        watch = Watch()
        with counting_tolist(watch, monkeypatch):
            next(steps)
        assert watch.syncs == 1, f"{kind}: {watch.syncs} host syncs in one round"
        seen.append(watch.shapes)
    assert all(shapes == seen[0] for shapes in seen), f"{kind}: a round differs in shapes or operations"
    assert addresses == [layer.keys.data_ptr() for session, _ in sessions for layer in session.cache.layers]


def test_the_watch_sees_a_sync_and_a_new_shape(monkeypatch):
    watch = Watch()
    with counting_tolist(watch, monkeypatch):
        values = torch.arange(4)
        values[values > 1].sum().item()
        values.tolist()
    assert watch.syncs >= 3


@pytest.mark.parametrize("name", ["Llama", "Gemma-3", "GPT-2"])
def test_the_scoring_step_traces_whole_and_only_once_per_shape(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    model.generation_config.eos_token_id = None
    expected = mmspec.text.generate(model, inputs, max_new_tokens=30)
    reset_compiler()
    target = HFTarget(model, DecoderOnly.of(model)).capture(100, backend="eager", mode=None)
    drafter = ModelDrafter(HFTarget(model, DecoderOnly.of(model)), Chain(most_likely))
    stopping = DefaultStopping(3, 30)
    torch._dynamo.utils.counters.clear()
    list(decode(target, drafter, Greedy(), inputs, stopping=stopping, noise=Noise.from_seed(0, 3), control=Fixed(3)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert stopping.outputs == expected.sequences.tolist()


CAPTURED = {  # a target, how its drafter is made, what that reads, and how many shapes there are: one of the target's, two of the drafter's
    "text": ("Llama", lambda model: llama(), None, 3),
    "another vocabulary": ("Llama", lambda model: llama(vocab_size=VOCAB + 2), None, 3),
    "two views": ("LLaVA", lambda model: perturbed(copy.deepcopy(model)), ("own", "drop"), 3),
}


@pytest.mark.parametrize("kind", CAPTURED)
def test_drafter_models_are_captured_with_their_target_once_for_all_requests(kind, monkeypatch):
    name, make, view, shapes = CAPTURED[kind]
    model = build(FAMILIES[name])
    model.generation_config.eos_token_id = None
    settings = {"drafter": make(model), "view": view, "draft_length": 3, "max_new_tokens": 12}
    requests = [inputs_for(name, 3, seed=seed) for seed in (1, 2)]
    expected = [mmspec.text.generate(model, inputs, **settings) for inputs in requests]
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: real(model, backend="eager", fullgraph=True, dynamic=False))
    reset_compiler()
    torch._dynamo.utils.counters.clear()
    for inputs, plain in zip(requests, expected, strict=True):
        out = mmspec.text.generate(model, inputs, capture=True, **settings)
        assert torch.equal(out.sequences, plain.sequences)
        assert out.stats.tokens_per_call == plain.stats.tokens_per_call
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == shapes
    assert not torch._dynamo.utils.counters["graph_break"]
