"""The target as its own drafter: layers left out, a small window, learned look-ahead. Whatever it drafts, the output stands."""

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.layer_skip import SimilarLayers, SkipLayers, every_other, skips_of
from mmspec.drafters.self_drafting.mask_tokens import MaskTokens
from mmspec.drafters.self_drafting.swift import LayerSearch, Swift, foretold, search_parts
from mmspec.drafters.self_drafting.windowed import Windowed
from mmspec.drafters.shapes import Chain, Comb, draw_without_replacement, drawn, most_likely, sampled, top
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.models import skipped_parts as partial
from mmspec.models.families.base import DecoderOnly
from mmspec.models.module_copy import own_copy
from mmspec.models.partial_forward import PartialForward
from mmspec.models.skipped_parts import Skips, rewired
from mmspec.models.target import HFTarget
from tests.conftest import llama
from tests.drafters.runs import greedy, hooks, plain, random_prompt, run
from tests.drafters.test_contract import Varied
from tests.families import FAMILIES, build, inputs_for

ONE, RAGGED = random_prompt(9), random_prompt(5, 9, 7, seed=1)
TREE = Template.branching((3, 2, 1))
SHAPES = {"chain": Chain(most_likely), "comb": Comb(3, top), "tree": StaticTree(TREE, top), "search": ExpandRerank(3, 3, 7)}
EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def masks(hidden: int = 32) -> MaskTokens:
    torch.manual_seed(0)
    return MaskTokens(hidden, 3)


SOURCES = {
    "default": SkipLayers(),
    "layers": SkipLayers(layers=(1,)),
    "parts": SkipLayers(attention=(0, 2), mlp=(1,)),
    "similar": SimilarLayers(window=6),
    "swift": Swift(every=1, window=8, trials=12, guided=3),
    "windowed": Windowed(1, 3),
    "no-sinks": Windowed(0, 2),
    "masks": masks(),
}


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]


@EACH_SHAPE
def test_greedy_output_is_that_of_transformers(source, big, shape):
    """Rows alone: below, and in every tree in `tests.drafters.test_products`."""
    assert run(big, GuidedDrafter(source, shape), RAGGED).sequences.tolist() == greedy(big, RAGGED)


@pytest.mark.parametrize("rule", [Match(), Coupled()], ids=["match", "coupled"])
def test_sampled_output_is_that_of_plain_sampling(source, big, rule):
    for shape in (Chain(drawn), StaticTree(TREE, draw_without_replacement)):
        drafter = GuidedDrafter(source, shape)
        assert run(big, drafter, RAGGED, rule, seed=3, temperature=1.0).sequences.tolist() == plain(big, RAGGED, seed=3)


def test_draft_length_may_change_every_round(source, big):
    assert run(big, GuidedDrafter(source, Chain(most_likely)), RAGGED, control=Varied()).sequences.tolist() == greedy(big, RAGGED)


def test_rows_that_end_early(source, big):
    ends = [greedy(big, RAGGED)[0][6]]
    expected = run(big, NoDraft(), RAGGED, ends=ends)
    assert run(big, GuidedDrafter(source, Chain(most_likely)), RAGGED, ends=ends).sequences.tolist() == expected.sequences.tolist()


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_a_row_drafts_the_same_alone_and_in_a_batch(source, big, rule):
    """Under rules that read q, the output itself depends on what is drafted: no row may look at another."""
    together, drafter = [[], [], []], GuidedDrafter(source, Chain(sampled))

    def note(step):
        for row, values in zip(together, step.committed.values, strict=True):
            row += [values] if values else []

    run(big, drafter, RAGGED, rule, temperature=1.0, on_step=note)
    for row in range(3):
        alone = []
        inputs = {key: value[row : row + 1] for key, value in RAGGED.items()}
        run(big, drafter, inputs, rule, seed=row, temperature=1.0, on_step=lambda step, alone=alone: alone.append(step.committed.values[0]))
        assert alone == together[row]


def test_no_residue_between_calls(source, big):
    before, hooked, drafts = [set(vars(module)) for module in big.modules()], hooks(big), []
    for _ in range(2):
        seen = []
        run(big, GuidedDrafter(source, Chain(most_likely)), RAGGED, on_step=lambda step, seen=seen: seen.append(step.draft.nodes.tolist()))
        drafts.append(seen)
    assert drafts[0] == drafts[1]
    assert [set(vars(module)) for module in big.modules()] == before
    assert hooks(big) == hooked


def committed(model, inputs, new: int = 8):
    """A session in the middle of a generation."""
    target = HFTarget(model, DecoderOnly.of(model))
    session, pending = target.begin(inputs)
    for _ in range(new):
        scored = session.score(pending)
        session.commit(torch.zeros_like(pending.nodes), 1)
        pending = type(pending).root(scored.p.mode()[:, -1], pending.start + 1)
    return session, pending


def test_a_side_view_leaves_the_targets_distributions_alone(source, big):
    distributions = []
    for drafting in (True, False):
        session, pending = committed(big, RAGGED)
        guide = source.guide(session)
        if drafting:
            for lengths in ((4, 5, 3), (2, 2, 2)):
                draft = pending
                for _ in range(3):
                    draft_token = guide.score(draft).p.last(1).mode()
                    draft = draft.extend_chain(draft_token, torch.tensor(lengths))
                guide.close()
        distributions.append(session.score(pending).p.scores)
    assert torch.equal(distributions[0], distributions[1])


# --- drafters that are the target --------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [SkipLayers(()), Windowed(4, 60), Windowed(0, 40)], ids=["skip-nothing", "sinks", "window"])
@pytest.mark.parametrize("name", ["chain", "comb", "tree"])
def test_nothing_left_out_accepts_every_draft_token(big, whole, name):
    steps = []
    run(big, GuidedDrafter(whole, SHAPES[name]), RAGGED, control=Fixed(3), on_step=steps.append)
    depths = [int(step.draft.depth()[row].max()) for step in steps for row in range(3)]
    assert [accepted for step in steps for accepted in step.verdict.accepted.tolist()] == depths


def test_the_first_draft_token_of_mask_tokens_is_the_targets_own(big):
    steps = []
    run(big, GuidedDrafter(masks(), Chain(most_likely)), RAGGED, on_step=steps.append)
    assert all(taken >= 1 for step in steps[1:-1] for taken in step.committed.accepted if step.committed.judged[0])
    assert all(step.draft.size == 5 for step in steps[1:])  # the pending token, its own draft token and one for each embedding


def test_a_window_sees_the_sinks_and_the_newest_values_at_their_own_places(big):
    """The first draft token's distribution is that of the model with everything between masked out."""
    session, pending = committed(big, RAGGED, new=12)
    found = Windowed(2, 5).guide(session).score(pending).p.scores[:, -1]
    for row, length in enumerate(session.lengths.tolist()):
        ids = torch.cat([session.ids[row, :length], pending.nodes[row]])[None]
        seen = torch.ones(length + 1, length + 1, dtype=torch.bool).tril()
        seen[-1] = torch.tensor([place < 2 or place >= length - 5 for place in range(length + 1)])
        with torch.no_grad():
            expected = big(ids, attention_mask=seen[None, None]).logits[0, -1]
        assert torch.allclose(found[row], expected, atol=1e-4)


def test_left_out_parts_are_those_asked_for(big):
    """The side view's distribution is that of a model built without the parts: its own cache holds the whole target's keys, so one value
    only."""
    session, pending = committed(big, ONE, new=1)
    view = PartialForward(session, Skips(attention={1: None}, mlp={2: None}))
    found = view.score(pending).p.scores[:, -1]
    handles = [
        big.model.layers[1].self_attn.register_forward_hook(lambda m, a, out: (torch.zeros_like(out[0]), *out[1:])),
        big.model.layers[2].mlp.register_forward_hook(lambda m, a, out: torch.zeros_like(out)),
    ]
    try:
        other, same = committed(big, ONE, new=1)[0], pending
        other.cache = session.cache
        expected = other.score(same).p.scores[:, -1]
    finally:
        for handle in handles:
            handle.remove()
    assert torch.allclose(found, expected, atol=1e-5)


def test_rows_may_leave_out_different_parts(big):
    """Each row of a batch has the distribution it would have alone."""
    session, pending = committed(big, RAGGED)
    sets = [frozenset({("attention", 1)}), frozenset({("mlp", 1), ("layers", 0)}), frozenset({("attention", 1), ("layers", 0)})]
    together = PartialForward(session, skips_of(sets, session)).score(pending).p.scores
    for row, parts in enumerate(sets):
        alone = PartialForward(session, skips_of([parts], session)).score(pending).p.scores
        assert torch.allclose(together[row], alone[row], atol=1e-4)


# --- choosing ---------------------------------------------------------------------------------------------------------


def test_replay_with_nothing_left_out_foretells_what_the_target_said(big):
    session, pending = committed(big, RAGGED, new=10)
    before = [layer.keys[:, :, : int(session.lengths.min())].clone() for layer in session.cache.slot_layers]
    since = session.lengths - 9  # the first value written stands behind the prompt's last
    assert foretold(PartialForward(session), pending, 32, since) == ([9, 9, 9], [9, 9, 9])
    assert foretold(PartialForward(session), pending, 4, since) == ([4, 4, 4], [4, 4, 4])
    after = [layer.keys[:, :, : int(session.lengths.min())] for layer in session.cache.slot_layers]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def planted(layers: int = 6):
    """A model whose layers 1 and 3 do nothing at all: the others are what a search must keep."""
    model = llama(layers, seed=4)
    for index in (1, 3):
        model.model.layers[index].self_attn.o_proj.weight.data.zero_()
        model.model.layers[index].mlp.down_proj.weight.data.zero_()
    return model


def test_likeness_finds_the_layers_that_do_nothing():
    model = planted()
    session, _ = committed(model, RAGGED, new=1)
    guide = SimilarLayers(share=0.34).guide(session)
    guide.observe(None, None, None)
    own = own_copy(model)
    assert set(guide.view.changes) == {own.model.layers[1], own.model.layers[3]}


@pytest.mark.parametrize("name", ["swift", "offline"])
def test_searches_find_the_parts_that_do_nothing(name):
    model = planted()
    idle = {(kind, index) for kind in ("attention", "mlp") for index in (1, 3)}
    if name == "offline":
        found, score = search_parts(HFTarget(model, DecoderOnly.of(model)), RAGGED, new=24, share=0.25, trials=60)
        parts = {("attention", index) for index in found.attention} | {("mlp", index) for index in found.mlp}
        assert score > 0.9
        assert parts < idle
        return
    seen = []
    drafter = GuidedDrafter(Swift(share=0.25, every=1, trials=60, window=16, enough=0.99), Chain(most_likely))
    run(model, drafter, ONE, new=120, on_step=lambda step: seen.append((step.committed.accepted[0], step.committed.judged[0])))
    assert all(accepted == judged for accepted, judged in seen[len(seen) // 2 :])
    assert any(accepted < judged for accepted, judged in seen)


def test_a_search_is_a_function_of_its_seed():
    parts = [(kind, index) for index in range(1, 9) for kind in ("attention", "mlp")]

    def trace(seed):
        search = LayerSearch(parts, 0.45, 3, seed)
        tried = []
        for _ in range(12):
            tried.append(search.candidate())
            search.learn(tried[-1], sum(index for _, index in tried[-1]) / 100)
        return tried, search.best

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
    tried, found = trace(1)
    assert {len(one) for one in tried} == {7}
    assert found == max(tried, key=lambda one: sum(index for _, index in one))
    assert every_other(parts, 0.5) == tried[0] or len(every_other(parts, 0.5)) == 8


# --- families and refusals --------------------------------------------------------------------------------------------


STATES = ("Qwen3.5", "Qwen3.5-MoE", "LFM2-VL", "LFM3-VL")
"""Families with recurrent or convolution states. What `Swift` measures, and windows and masks over the newest values, would change them."""


@pytest.mark.parametrize(("number", "name"), enumerate(FAMILIES), ids=FAMILIES)
def test_every_family_drafts_for_itself(number, name):
    """Every source in a ragged batch, as chains and trees in turn, and one of them with a row alone; rows alone in trees: above."""
    model, inputs, new = build(FAMILIES[name]), inputs_for(name, 3), 9
    expected = mmspec.text.generate(model, inputs, max_new_tokens=new).sequences
    before = changed(model)  # towers whose inner states are asked for keep transformers' own recorders
    depth = len(partial.stack(model))
    hidden = model.get_input_embeddings().weight.shape[1]
    sources = (EarlyExit(1), EarlyExit(depth), SkipLayers(), SkipLayers((0,)), Swift(every=2), Windowed(1, 4), masks(hidden))
    if name in STATES:
        with pytest.raises(ValueError, match="keeps recurrent states, so this drafter cannot run"):
            mmspec.text.generate(model, inputs, drafter=sources[4], max_new_tokens=new)
        sources = sources[:4]
    for turn, source in enumerate(sources, number):
        options = {"tree": (2, 2)} if turn % 2 else {"draft_length": 4}
        out = mmspec.text.generate(model, inputs, drafter=source, max_new_tokens=new, **options)
        assert torch.equal(out.sequences, expected), f"{name}, {source}, {options}"
    source, alone = sources[number % len(sources)], inputs_for(name, 1)
    expected = mmspec.text.generate(model, alone, max_new_tokens=new).sequences
    assert torch.equal(mmspec.text.generate(model, alone, drafter=source, max_new_tokens=new, draft_length=4).sequences, expected), source
    assert changed(model) == before


def changed(model):
    """Modules with a forward of their own, and hooks."""
    return [(name, "forward" in vars(module), len(module._forward_hooks)) for name, module in model.named_modules()]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_with_nothing_left_out_accepts_everything(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    model.generation_config.eos_token_id = None
    depth = len(partial.stack(model))
    for source in (EarlyExit(depth), SkipLayers(()), Windowed(4, 124)):  # as long as the longest prompt
        out = mmspec.text.generate(model, inputs, drafter=source, draft_length=4, max_new_tokens=11)
        assert out.stats.accepted == out.stats.drafted, f"{name}, {source}"


@pytest.mark.parametrize("name", ["exit", "adapter", "swift", "windowed", "masks"])
def test_beside_a_captured_target(name):
    """Side views run the model itself; the captured one runs every draft in full, and hands out the states others watch."""
    model = llama(3, seed=0)
    sources = {"exit": EarlyExit(2), "adapter": Adapter(**Adapter.fit(model.config) | {"layer": 2}), **SOURCES}
    target = HFTarget(model, DecoderOnly.of(model)).capture(64, mode=None, backend="eager")
    options = {"stopping": DefaultStopping(3, 16), "noise": Noise.from_seed(0, 3), "control": Fixed(3)}
    out = generate(target, GuidedDrafter(sources[name], Chain(most_likely)), Greedy(), RAGGED, **options)
    assert out.sequences.tolist() == greedy(model, RAGGED, new=16)


@pytest.mark.parametrize("name", ["early-exit", "layer-skip", "similar-layers", "swift", "windowed"])
def test_names_need_no_weights(name, big):
    options = {"max_new_tokens": 12, "temperature": 1.0, "seed": 5}
    plain_tokens = mmspec.text.generate(big, RAGGED, **options).sequences
    assert torch.equal(mmspec.text.generate(big, RAGGED, drafter=name, draft_length=3, **options).sequences, plain_tokens)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SkipLayers(layers=(7,)), "layer 7 does not exist: LlamaForCausalLM has 3 layers, so 0 to 2"),
        (lambda: SkipLayers(mlp=(-1,)), "layer -1 does not exist"),
        (lambda: Windowed(-1, 3), "sinks and window are -1 and 3"),
        (lambda: Windowed(1, 0), "1 or more last ones"),
        (lambda: SimilarLayers(share=1.0), "share is 1.0"),
        (lambda: Swift(every=0), "every, guided and trials are 0"),
        (lambda: MaskTokens(32, 0), "each must be at least 1"),
        (lambda: MaskTokens(64, 2), "hidden states 64 wide"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(big, make, words):
    with pytest.raises(ValueError, match=words) as caught:
        run(big, GuidedDrafter(make(), Chain(most_likely)), ONE)
    assert "\n" not in str(caught.value)


def test_parts_that_do_more_than_add_are_refused():
    model = BloomForCausalLM(BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4))
    with pytest.raises(ValueError, match="adds the residual itself"):
        Skips(attention={0: None}).changes(model)
    assert Skips(layers={0: None}).changes(model)


def test_mutant_a_part_that_stays_left_out(big):
    """Were a side view's changes still in place when the target scores, the output would show it."""
    expected = greedy(big, RAGGED)
    drafter = GuidedDrafter(SkipLayers(layers=(1,)), Chain(most_likely))
    session = drafter.begin(None, committed(big, RAGGED)[0])
    with rewired(session.guide.view.changes):
        assert run(big, NoDraft(), RAGGED).sequences.tolist() != expected
    assert run(big, NoDraft(), RAGGED).sequences.tolist() == expected
