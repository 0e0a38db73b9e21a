"""Early exit: the first layers draft, the target goes on where they stopped, and every layer runs once for every node."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.shapes import Chain, Comb, draw_without_replacement, drawn, most_likely, sampled, top
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.models import partial_forward as side
from mmspec.models.compat.cache_name import cache_name_among
from mmspec.models.families.base import DecoderOnly
from mmspec.models.module_copy import own_copy
from mmspec.models.skipped_parts import Skips, rewired
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFTarget
from tests.conftest import llama
from tests.drafters.runs import greedy, hooks, plain, random_prompt, run
from tests.drafters.test_contract import Varied

ONE, RAGGED = random_prompt(9), random_prompt(5, 9, 7, seed=1)
TREE = Template(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)))
SHAPES = {
    "chain": Chain(most_likely),
    "comb": Comb(3, top),
    "tree": StaticTree(TREE, top),
    "path": StaticTree(Template.branching((1, 1, 1)), top),
    "search": ExpandRerank(3, 3, 7),
}
EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def adapter(model, layer: int = 2, mlp: bool = False) -> Adapter:
    """One that does something, if nothing clever."""
    torch.manual_seed(3)
    net = Adapter(**Adapter.fit(model.config) | {"layer": layer, "mlp": mlp}).eval()
    for parameter in net.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return net


@pytest.fixture(params=["exit-1", "exit-2", "adapter", "adapter-mlp"], scope="module")
def source(request, big):
    made = {
        "exit-1": lambda: EarlyExit(1),
        "exit-2": lambda: EarlyExit(2),
        "adapter": lambda: adapter(big),
        "adapter-mlp": lambda: adapter(big, 1, mlp=True),
    }
    return made[request.param]()


@EACH_SHAPE
def test_greedy_output_is_that_of_transformers(source, big, shape):
    """Rows alone: below, and in every tree in `tests.drafters.test_products`."""
    assert run(big, GuidedDrafter(source, shape), RAGGED).sequences.tolist() == greedy(big, RAGGED)


@pytest.mark.parametrize("rule", [Match(), Coupled()], ids=["match", "coupled"])
def test_sampled_output_is_that_of_plain_sampling(source, big, rule):
    for shape in (Chain(drawn), StaticTree(TREE, draw_without_replacement)):
        drafter = GuidedDrafter(source, shape)
        assert run(big, drafter, RAGGED, rule, seed=3, temperature=1.0).sequences.tolist() == plain(big, RAGGED, seed=3)


@EACH_SHAPE
def test_draft_length_may_change_every_round(source, big, shape):
    assert run(big, GuidedDrafter(source, shape), RAGGED, control=Varied()).sequences.tolist() == greedy(big, RAGGED)


def test_a_row_drafts_the_same_alone_and_in_a_batch(source, big):
    together = [[], [], []]
    drafter = GuidedDrafter(source, Chain(sampled))
    options = {"rule": Token(), "temperature": 1.0}
    run(
        big,
        drafter,
        RAGGED,
        on_step=lambda step: [r.append(v) for r, v in zip(together, step.committed.values, strict=True) if v],
        **options,
    )
    for row in range(3):
        alone = []
        inputs = {key: value[row : row + 1] for key, value in RAGGED.items()}
        run(big, drafter, inputs, seed=row, on_step=lambda step, alone=alone: alone.append(step.committed.values[0]), **options)
        assert alone == together[row]


@pytest.mark.parametrize("name", ["chain", "comb", "tree", "path"])  # a search may leave out the likeliest path
def test_exit_at_the_last_layer_accepts_every_draft_token(big, name):
    steps = []
    run(big, GuidedDrafter(EarlyExit(3), SHAPES[name]), RAGGED, control=Fixed(3), on_step=steps.append)
    depths = [int(step.draft.depth()[row].max()) for step in steps for row in range(3)]
    assert [accepted for step in steps for accepted in step.verdict.accepted.tolist()] == depths
    assert max(depths) == 3


def test_an_untrained_adapter_drafts_as_the_exit_it_reads(big):
    idle = Adapter(**Adapter.fit(big.config) | {"layer": 2}).eval()
    idle.start_from(big)
    drafts = []
    for made in (EarlyExit(2), idle):
        seen = []
        run(big, GuidedDrafter(made, Chain(most_likely)), RAGGED, on_step=lambda step, seen=seen: seen.append(step.draft.nodes.tolist()))
        drafts.append(seen)
    assert drafts[0] == drafts[1]


def test_an_adapter_sees_the_whole_text(big):
    """Its drafts equal those of the adapter run over the whole text at once."""
    net, steps = adapter(big), []
    run(big, GuidedDrafter(net, Chain(most_likely)), ONE, on_step=steps.append)
    text = ONE["input_ids"][0].tolist()
    for step in steps:
        if step.draft.size > 1:
            made = step.draft.nodes[0, 1:][step.draft.valid[0, 1:]].tolist()
            known = [*text, *made]
            own = own_copy(big)
            with side.leaving(own, net.layer) as found, torch.no_grad():
                own(torch.tensor([known]))
                count = len(known)
                mask = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
                state = net(found[0], torch.arange(count)[None], mask)
                draft_tokens = net.own_logits(state, big.lm_head).argmax(-1)[0]
            assert draft_tokens[len(text) - 1 : -1].tolist() == made
        text += step.committed.values[0]


# --- the work it spares -----------------------------------------------------------------------------------------------


class Columns:
    """Counts the columns that every layer really runs, scratch columns left out, from the second round on."""

    def __init__(self, model):
        self.model, self.seen = model, [0] * len(model.model.layers)

    def __enter__(self):
        cache = [None]
        self.handles = []
        for index, layer in enumerate(self.model.model.layers):

            def count(module, args, kwargs, index=index):
                cursor = kwargs[cache_name_among(kwargs)].cursor
                self.seen[index] += int((cursor.slots < cursor.capacity - 1).sum())

            self.handles.append(layer.self_attn.register_forward_pre_hook(count, with_kwargs=True))
        return cache

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()


@EACH_SHAPE
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_every_layer_runs_once_for_every_node_of_a_round(big, shape, layer):
    run(big, GuidedDrafter(EarlyExit(layer), shape), RAGGED, new=6)  # the first runs of all learn how layers return things
    columns, rounds = Columns(big), []

    def note(step):
        nodes, seen = int(step.draft.valid.sum()), list(columns.seen)
        rounds.append((nodes, [now - before for now, before in zip(seen, rounds_total, strict=True)]))
        rounds_total[:] = seen

    rounds_total = [0, 0, 0]
    with columns:
        run(big, GuidedDrafter(EarlyExit(layer), shape), RAGGED, on_step=note)
    for nodes, ran in rounds[1:]:
        assert ran[layer:] == [nodes] * (3 - layer)
        dropped = isinstance(shape, ExpandRerank)  # what the search ran and then left out is run in vain
        assert all(nodes <= count <= nodes + 3 * 7 for count in ran[:layer]) if dropped else ran[:layer] == [nodes] * layer


def session_of(model, inputs):
    target = HFTarget(model, DecoderOnly.of(model))
    session, pending = target.begin(inputs)
    session.score(pending)
    return session, pending


def test_a_draft_nobody_announced_is_scored_from_the_start(big):
    """Exit states belong to the very draft they were made for."""
    session, pending = session_of(big, ONE)
    session.commit(torch.zeros(1, 1, dtype=torch.long), 1)
    guide = EarlyExit(2).guide(session)
    start = replace(pending, nodes=torch.tensor([[7]]), start=pending.start + 1)
    draft = start.extend_chain(torch.tensor([[8, 9]]), torch.tensor([2]))
    guide.score(draft)
    guide.share(draft, torch.tensor([[1, 2]]))
    other = start.extend_chain(torch.tensor([[5, 6]]), torch.tensor([2]))
    found = session.score(other).p.scores
    text = torch.cat([ONE["input_ids"], other.nodes], 1)
    with torch.no_grad():
        assert torch.allclose(found, big(text).logits[:, -3:], atol=1e-4)


@EACH_SHAPE
def test_the_cache_is_what_it_would_have_been(source, big, shape):
    """After the same text, the same keys and values in every layer: shared work leaves no trace."""

    class Peek:
        def __init__(self, drafter):
            self.drafter = drafter

        def begin(self, prompt, session):
            self.session = session
            return self.drafter.begin(prompt, session)

    caches = []
    for drafter in (Peek(GuidedDrafter(source, shape)), Peek(NoDraft())):
        run(big, drafter, RAGGED)
        caches.append(drafter.session)
    for own, other in zip(caches[0].cache.slot_layers, caches[1].cache.slot_layers, strict=True):
        for row, length in enumerate(torch.minimum(caches[0].lengths, caches[1].lengths).tolist()):
            assert torch.allclose(own.keys[row, :, :length], other.keys[row, :, :length], atol=1e-4)
            assert torch.allclose(own.values[row, :, :length], other.values[row, :, :length], atol=1e-4)


# --- what must not happen ---------------------------------------------------------------------------------------------


def test_the_model_is_left_as_it_was_whatever_happens(big):
    before, hooked = [dict(vars(module)) for module in big.modules()], hooks(big)

    def broken(real):
        def forward(*args, **kwargs):
            raise RuntimeError("half way")

        return forward

    own = own_copy(big)
    with pytest.raises(RuntimeError, match="half way"), rewired(Skips({0: None}).changes(own) | {own.model.layers[2]: broken}):
        own(ONE["input_ids"])
    assert hooks(own) == hooked
    assert not any("forward" in vars(module) for module in own.modules())
    with pytest.raises(ValueError, match="belongs to no copy"), rewired(Skips({0: None}).changes(big)):
        pass
    run(big, GuidedDrafter(EarlyExit(1), Chain(most_likely)), RAGGED)
    assert all(vars(module).keys() == old.keys() for module, old in zip(big.modules(), before, strict=True))
    assert hooks(big) == hooked


def test_a_forward_that_others_put_on_a_module_survives(big):
    layer = big.model.layers[0]
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs)
    mine = layer.forward
    try:
        run(big, GuidedDrafter(EarlyExit(1), Chain(most_likely)), ONE)
        assert layer.forward is mine
    finally:
        del layer.forward


def test_mutant_exit_states_one_column_off(big, monkeypatch):
    """The equalities above see a state handed to the wrong node."""
    expected = greedy(big, RAGGED)
    real = side.ShallowView.hand_over
    monkeypatch.setattr(side.ShallowView, "hand_over", lambda self, draft, origin: real(self, draft, (origin - 1).clamp_min(0)))
    assert run(big, GuidedDrafter(EarlyExit(2), Chain(most_likely)), RAGGED).sequences.tolist() != expected


def test_mutant_keys_not_moved_to_the_trees_slots(big, monkeypatch):
    expected = greedy(big, RAGGED)
    real = SlotCache.gather
    monkeypatch.setattr(SlotCache, "gather", lambda self, s, t, layers=None: real(self, s, t) if layers is None else None)
    found = run(big, GuidedDrafter(EarlyExit(2), StaticTree(TREE, top)), RAGGED).sequences.tolist()
    assert found != expected


def test_mutant_a_stub_left_behind(monkeypatch):
    model = llama(3, seed=0)
    expected = greedy(model, RAGGED)
    monkeypatch.setattr("mmspec.models.skipped_parts._restore", lambda module, forward: None)
    assert run(model, GuidedDrafter(EarlyExit(1), Chain(most_likely)), RAGGED).sequences.tolist() != expected


@pytest.mark.parametrize(("layer", "words"), [(0, "exit after 1 to 3"), (4, "the target has 3 layers")])
def test_a_layer_that_does_not_exist_is_refused(big, layer, words):
    with pytest.raises(ValueError, match=words):
        run(big, GuidedDrafter(EarlyExit(layer), Chain(most_likely)), ONE)


def test_an_adapter_for_another_width_is_refused(big):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}
    with pytest.raises(ValueError, match="hidden states 64 wide"):
        run(big, GuidedDrafter(Adapter(1, sizes), Chain(most_likely)), ONE)


def test_an_adapter_has_the_published_names(big):
    names = set(Adapter(**Adapter.fit(big.config)).state_dict())
    attention = {f"layers.0.self_attn.{part}_proj.weight" for part in "qkvo"}
    assert names == attention | {"layers.0.input_layernorm.weight", "norm.weight"}
