"""Block drafters: DFlash against its formula and transformers' own, the distribution of a block, heads on its states, what a round costs.

What every drafter owes: `tests.drafters.test_nets`; that a net drafts as it was trained: `test_guided`; rules and trees: `test_products`.
"""

import pytest
import torch
import transformers
from torch.nn.functional import linear, silu

import mmspec
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Draft, Verdict
from mmspec.core.rules.block import Block
from mmspec.drafters.block.dflash import DFlash, DSpark, spread_states
from mmspec.drafters.block.dflash2 import BlockConvolution, DFlash2
from mmspec.drafters.block.guide import BlockGuide
from mmspec.drafters.block.heads import MarkovHead
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.checkpoints.load import from_assistant, load_drafter
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled
from mmspec.drafters.stops import Survival
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget
from tests import tiny
from tests.conftest import llama
from tests.dflash_assistants import trained
from tests.drafters.runs import greedy, prompt_of, random_prompt, run
from tests.drafters.test_guided import BLOCK, SIZES, WINDOWS, gap_to_training, lively
from tests.oracles.statistics import FAIL, PASS, chi_square

RAGGED = random_prompt(5, 9, 1, seed=1)


def dflash(**options):
    return lively(DFlash((1, 3), BLOCK, 50, **{"layers": 2, "block": 6, **options}))


def p_eagle(**options):
    return lively(ParallelEagle((1, 2, 3), SIZES, 50, **{"tokens": 5, **options}))


# --- the formula ------------------------------------------------------------------------------------------------------


def normed(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def turned(x, positions, width=16):
    """Rotary embedding of x [heads, M, D]."""
    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def by_hand(net, features, values, seen=None):
    """The states [block, H] of one block behind context states [M, F]: every column sees the context and the whole block."""
    w = net.state_dict()
    context = normed(linear(features, w["fc.weight"]), w["hidden_norm.weight"])
    x, t = values, torch.arange(len(features) + len(values))
    for k in range(len(net.layers)):
        own = {name.removeprefix(f"layers.{k}."): tensor for name, tensor in w.items() if name.startswith(f"layers.{k}.")}
        h = normed(x, own["input_layernorm.weight"])
        both = torch.cat([context, h])
        made = {"q": h, "k": both, "v": both}
        q, key, v = (linear(y, own[f"self_attn.{n}_proj.weight"]).view(len(y), -1, 16).transpose(0, 1) for n, y in made.items())
        q = turned(normed(q, own["self_attn.q_norm.weight"]), t[len(features) :])
        key = turned(normed(key, own["self_attn.k_norm.weight"]), t).repeat_interleave(2, 0)
        scores = q @ key.transpose(1, 2) / 4
        if seen is not None:
            scores = scores.masked_fill(~seen(k, t[len(features) :, None], t), -torch.inf)
        found = (scores.softmax(-1) @ v.repeat_interleave(2, 0)).transpose(0, 1).flatten(1)
        x = x + linear(found, own["self_attn.o_proj.weight"])
        h = normed(x, own["post_attention_layernorm.weight"])
        gate, up = (linear(h, own[f"mlp.{n}_proj.weight"]) for n in ("gate", "up"))
        x = x + linear(silu(gate) * up, own["mlp.down_proj.weight"])
    return normed(x, w["norm.weight"])


@torch.no_grad()
def states_of(net, big, ids, anchors):
    hidden = big(ids, output_hidden_states=True).hidden_states
    features = torch.cat([hidden[state] for state in net.reads], -1)
    values = net.block_values(big.get_input_embeddings(), ids.gather(1, anchors))
    return net.blocks(features, values, anchors), features, values


@pytest.mark.parametrize("from_anchor", [False, True])
def test_a_block_is_the_published_formula(big, from_anchor):
    net = dflash(from_anchor=from_anchor)
    ids, anchors = torch.randint(0, 50, (2, 19), generator=torch.Generator().manual_seed(4)), torch.tensor([[0, 4, 17], [2, 9, 18]])
    states, features, values = states_of(net, big, ids, anchors)
    assert states.shape == (2, 3, net.most, 32)
    for row in range(2):
        for place, anchor in enumerate(anchors[row].tolist()):
            wanted = by_hand(net, features[row, :anchor], values[row, place])[6 - net.most :]
            assert (states[row, place] - wanted).abs().max() < 1e-4


def test_windows_and_causal_layers_are_the_published_ones(big):
    net = lively(DFlash((1, 3), BLOCK | WINDOWS, 50, layers=2, block=6, mask_id=7, causal=(True, False)))
    ids, anchors = torch.randint(0, 50, (1, 19), generator=torch.Generator().manual_seed(4)), torch.tensor([[3, 11]])
    states, features, values = states_of(net, big, ids, anchors)
    assert torch.equal(values[0, :, 1:], big.get_input_embeddings()(torch.full((2, 5), 7)))

    def seen(k, q, t):
        return (q - t < 5) & (q >= t) if k == 0 else torch.ones_like(q - t, dtype=torch.bool)

    for place, anchor in enumerate(anchors[0].tolist()):
        assert (states[0, place] - by_hand(net, features[0, :anchor], values[0, place], seen)[1:]).abs().max() < 1e-4


def test_chunks_of_blocks_change_nothing(big):
    """More blocks than the context has room for columns are run in several steps."""
    net = dflash()
    ids, anchors = torch.randint(0, 50, (1, 13)), torch.arange(13)[None]
    states, features, values = states_of(net, big, ids, anchors)
    for anchor in (0, 1, 7, 12):
        alone = net.blocks(features, values[:, anchor : anchor + 1], anchors[:, anchor : anchor + 1])
        assert (states[:, anchor] - alone[:, 0]).abs().max() < 1e-5


# --- transformers' own ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def assistant(tmp_path_factory):
    """A small assistant with a layer that slides, and its folder."""
    hf = pytest.importorskip("transformers", "5.23", reason="transformers has DFlash assistants since 5.23")
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    kinds = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    config = hf.MuseGlimmerAssistantConfig(**sizes, **kinds, block_size=6, mask_token_id=49, target_layer_ids=[0, 2])
    model = hf.MuseGlimmerAssistantModel(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.15 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("assistant")
    model.save_pretrained(folder)
    return model, folder


def side_by_side(target, model, net, inputs, new, monkeypatch):
    """The drafts of every round, here and of transformers' own assisted generation, and our statistics. The text is the same."""
    theirs, ours, count = [], [], inputs["input_ids"].shape[1]
    generator = transformers.generation.DFlashTokenCandidateGenerator
    get = generator.get_candidates

    def noted(self, input_ids, *args, **kwargs):
        found = get(self, input_ids, *args, **kwargs)
        theirs.append(found[0][0, input_ids.shape[1] :].tolist())
        return found

    monkeypatch.setattr(generator, "get_candidates", noted)
    target.generation_config.eos_token_id = None
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    out = target.generate(**inputs, assistant_model=model, speculation_type="dflash", **options)
    drafter, note = GuidedDrafter(net, Chain(most_likely)), lambda step: ours.append(step.draft.nodes[0, 1:].tolist())
    found = run(target, drafter, inputs, new=new, length=net.most, on_step=note)
    assert found.sequences.tolist() == out[:, count:].tolist() == greedy(target, inputs, new=new)
    assert len(ours) == len(theirs)
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):  # theirs drafts nothing before the last token
        assert one == other[: len(one)]
    return ours, found.stats


@pytest.mark.parametrize("seed", [0, 3])
def test_drafts_and_text_are_those_of_transformers_own(assistant, seed, monkeypatch):
    """Greedy, one row, beyond the window of a layer that slides: in every round the same draft tokens, of which the same are accepted."""
    model, folder = assistant
    target = llama(3, seed)
    ours, _ = side_by_side(target, model, load_drafter(folder, target), random_prompt(9, seed=seed), 40, monkeypatch)
    assert len({tuple(draft) for draft in ours}) > 8
    assert all(len(draft) == 5 for draft in ours[1:-3])


def test_a_trained_assistant_is_accepted_as_often_as_by_transformers(monkeypatch, tmp_path):
    """Trained here, its weights in transformers' model: what is accepted is cached by both as it should be."""
    target, model = trained(tmp_path)
    own = from_assistant(model, target)
    assert own.reads == (1,)
    ours, stats = side_by_side(target, model, own, prompt_of([5, 6, 7]), 30, monkeypatch)
    assert stats.accepted > 20
    assert len(ours) < 10


def test_an_assistant_drafts_as_it_is_by_its_own_weights(assistant):
    """In trees and ragged batches, too, which transformers' assisted generation refuses."""
    model, folder = assistant
    target = llama(3, 0)
    target.generation_config.eos_token_id = None
    options = {"max_new_tokens": 12, "draft_length": 4}
    for tree in (None, "opt", (2, 2)):
        found, read = (mmspec.text.generate(target, RAGGED, net, tree=tree, **options) for net in (model, load_drafter(folder, target)))
        assert found.tokens.tolist() == read.tokens.tolist() == greedy(target, RAGGED, new=12)
        assert found.stats.to_dict() | {"seconds": 0} == read.stats.to_dict() | {"seconds": 0}
    net = from_assistant(model, target)
    assert net.fc.weight.data_ptr() == model.encoder.fc.weight.data_ptr()
    with pytest.raises(ValueError, match="reads hidden states 32 wide, but the target's are 16: it is for another target"):
        mmspec.text.generate(tiny.llama(50, hidden_size=16, num_hidden_layers=3), RAGGED, model, **options)
    with pytest.raises(ValueError, match="view applies to drafters that are transformers models"):
        mmspec.text.generate(target, RAGGED, model, view="text", **options)


def test_an_assistant_without_its_target_is_refused(assistant):
    with pytest.raises(ValueError, match="the file does not say how many values the target has: give target="):
        load_drafter(assistant[1])


# --- the distribution of a block --------------------------------------------------------------------------------------


def drafted(big, net, rows, length):
    """Drafts [rows, length] behind one prompt and the distributions they were drawn from."""
    prompt = {"input_ids": torch.tensor([[4, 8, 15, 16]] * rows), "attention_mask": torch.ones(rows, 4, dtype=torch.long)}
    drafts, options = [], {"new": length + 3, "length": length, "temperature": 1.0}
    run(big, GuidedDrafter(net, Chain(sampled)), prompt, Block(), **options, on_step=lambda step: drafts.append(step.draft))
    return drafts[1]


@pytest.mark.parametrize("make", [lambda: dflash(block=4), p_eagle], ids=["dflash", "p-eagle"])
def test_draft_tokens_are_independent_draws_from_q(big, make):
    """In rows whose first token is the same the second one's distribution is the same, whatever was drawn before."""
    draft = drafted(big, make(), 1500, 3)
    first = draft.nodes[:, 0].mode().values
    rows = draft.nodes[:, 0] == first
    q = draft.q.probs()[rows].double()
    assert rows.sum() > 200
    assert (q - q[:1]).abs().max() < 1e-5
    assert chi_square(draft.nodes[rows, 2], q[0, 1]) > PASS
    pairs = draft.nodes[rows, 1] * 50 + draft.nodes[rows, 2]
    assert chi_square(pairs, (q[0, 0][:, None] * q[0, 1]).flatten()) > PASS
    assert chi_square(draft.nodes[rows, 2], 0.7 * q[0, 1] + 0.3 * q[0, 1].roll(1)) < FAIL


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_a_markov_heads_draft_tokens_follow_the_path(big, kind):
    """q after each node is the block's distribution plus the bias of the values on the path, by the published formula."""
    net = lively(DSpark((1, 3), BLOCK, 50, layers=1, block=4, markov=8, markov_kind=kind, from_anchor=True))
    draft = drafted(big, net, 400, 4)
    rows = (draft.nodes[:, 0] == draft.nodes[:, 0].mode().values).nonzero()[:, 0]
    assert len({tuple(path) for path in draft.nodes[rows, 1:3].tolist()}) > 10
    states, w = block_states(big, net, int(draft.nodes[rows[0], 0])), net.markov_head
    base = big.lm_head(states)
    for row in rows[:40].tolist():
        memory = torch.zeros(8)
        for level in range(4):
            e, h = w.markov_w1.weight[draft.nodes[row, level]], states[level]
            if kind == "rnn":
                gate, candidate, out = (w.joint_proj.weight @ torch.cat([memory, e, h]) + w.joint_proj.bias).chunk(3)
                memory, c = gate.sigmoid() * memory + (1 - gate.sigmoid()) * candidate.tanh(), out.tanh()
            else:
                c = e if kind == "vanilla" else (w.gate_proj.weight @ torch.cat([h, e]) + w.gate_proj.bias).sigmoid() * e
            wanted = (base[level] + w.markov_w2.weight @ c).softmax(-1)
            assert (draft.q.probs()[row, level] - wanted).abs().max() < 1e-5


def test_a_selector_draws_among_candidates_by_their_fit_to_the_value_before(big):
    net = lively(DFlash2((1, 3), BLOCK, 50, block=4, group=8, rank=6, candidates=5))
    draft = drafted(big, net, 300, 3)
    rows = (draft.nodes[:, 0] == draft.nodes[:, 0].mode().values).nonzero()[:, 0]
    states, select = block_states(big, net, int(draft.nodes[rows[0], 0])), net.candidate_selector
    for row in rows[:40].tolist():
        for level in range(3):
            found, ids = big.lm_head(states[level]).topk(5)
            fit = select.predecessor_codebook.weight[draft.nodes[row, level]] * select.hidden_projection(states[level])
            wanted = torch.zeros(50).scatter(0, ids, (found + select.successor_codebook.weight[ids] @ fit).softmax(-1))
            assert (draft.q.probs()[row, level] - wanted).abs().max() < 1e-5


def test_a_convolution_stays_inside_its_block():
    torch.manual_seed(0)
    made, x = BlockConvolution(6, 2, 3), torch.randn(2, 8, 6)
    assert torch.equal(made(x, torch.tanh, 4), torch.tanh(x))  # a new one changes nothing
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    whole = made(x, torch.tanh, 4)
    assert torch.allclose(whole[:, 4:], made(x[:, 4:], torch.tanh, 4))
    kernel = made.kernel_projection(x[0, 5]).view(2, 2, 2)  # before and after, taps, groups
    late = [made.base_kernel[0, tap] + kernel[0, tap].repeat_interleave(3) for tap in range(2)]
    inside = torch.tanh(torch.stack([late[0] * x[0, 5] + late[1] * x[0, 4]]))
    before = made.kernel_projection(x[0, 4]).view(2, 2, 2)
    first = torch.tanh((made.base_kernel[0, 0] + before[0, 0].repeat_interleave(3)) * x[0, 4])
    last = [made.base_kernel[1, tap] + kernel[1, tap].repeat_interleave(3) for tap in range(2)]
    assert torch.allclose(whole[0, 5], (last[0] * inside[0] + last[1] * first), atol=1e-5)


@torch.no_grad()
def block_states(big, net, anchor):
    """The states of the block behind `drafted`'s prompt and its first token."""
    ids = torch.tensor([[4, 8, 15, 16, anchor]])
    return states_of(net, big, ids, torch.tensor([[4]]))[0][0, 0]


# --- what a round costs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dflash, p_eagle], ids=["dflash", "p-eagle"])
def test_one_forward_a_round_of_as_many_columns_as_are_new(big, make):
    net, seen = make(), []
    first = net.layers[0].self_attn.q_proj if isinstance(net, DFlash) else net.midlayer.self_attn.q_proj
    first.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[1]))
    rounds = run(big, GuidedDrafter(net, Chain(most_likely)), RAGGED, new=20, length=5).stats.target_calls
    assert len(seen) == rounds - 1
    assert set(seen[1:]) == ({6} if isinstance(net, DFlash) else {6 + 4})  # the block; or the round's columns and the masks


def test_attention_reads_no_more_slots_than_are_in_use(big, monkeypatch):
    views, fill = [], BlockGuide._filled

    def noted(self):
        found = fill(self)
        views.append((self.cache.cursor.view, int(self.session.lengths.max())))
        return found

    monkeypatch.setattr(BlockGuide, "_filled", noted)
    run(big, GuidedDrafter(dflash(), Chain(most_likely)), random_prompt(7), new=30, length=5)
    assert all(view == longest + 6 for view, longest in views)


def test_a_long_text_outgrows_the_first_cache(big):
    inputs = random_prompt(3, 30, seed=4)
    out = run(big, GuidedDrafter(dflash(), Chain(most_likely)), inputs, new=215, length=5)
    assert out.sequences.tolist() == greedy(big, inputs, new=215)


def test_a_block_that_sees_what_is_not_committed_is_caught(big, monkeypatch):
    """A mutant that forgets a row's own length, so that rows of other lengths see another context."""
    fill = BlockGuide._filled

    def longest(self):
        lengths = self.session.lengths
        self.session.lengths = lengths.max().expand_as(lengths).clone()
        try:
            return fill(self)
        finally:
            self.session.lengths = lengths

    net = lively(DFlash((1, 3), BLOCK, 50, layers=2, block=6))
    assert gap_to_training(big, net) < 1e-5
    monkeypatch.setattr(BlockGuide, "_filled", longest)
    assert gap_to_training(big, net) > 1e-2


# --- confidence -------------------------------------------------------------------------------------------------------


def spark():
    return lively(DSpark((1, 3), BLOCK, 50, block=5, from_anchor=True, markov=8, confidence=True))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_ends_drafts_and_changes_no_text(big, temperature):
    net, sizes = spark(), {}
    options = {"max_new_tokens": 16, "temperature": temperature, "draft_length": 5, "seed": [0, 1, 2]}
    expected = mmspec.text.generate(big, RAGGED, **options).tokens.tolist()
    for threshold in (None, 0.02, 0.3):
        lengths: list[int] = []
        note = lambda step, lengths=lengths: lengths.extend(step.committed.drafted)  # noqa: E731
        out = mmspec.text.generate(big, RAGGED, net, **options, stop_below=threshold, on_step=note)
        assert out.tokens.tolist() == expected
        sizes[threshold] = out.stats.drafted / out.stats.target_calls
        if threshold is not None:
            assert len(set(lengths)) > 2  # rows stop at their own places
    assert sizes[0.3] < sizes[0.02] < sizes[None]


def second_round(big, net):
    """A guide behind a prompt, and the pending draft of its second round."""
    session, pending = HFTarget(big, DecoderOnly.of(big)).begin(prompt_of([4, 8, 15]))
    guide = net.guide(session)
    scored = session.score(pending)
    keep, value = torch.zeros(1, 1, dtype=torch.long), scored.p.mode()
    session.commit(keep, 1)
    following = Draft.root(value[:, 0], torch.ones(1, dtype=torch.long))
    verdict = Verdict(keep, value, torch.ones(1, dtype=torch.long), following, torch.zeros(1), torch.zeros(1))
    guide.observe(pending, scored, verdict)
    return guide, guide.root(following)


def test_an_estimate_depends_on_the_path_before_its_token(big):
    """Known before the token is drawn: chains that end by it keep the distribution of those that remain (`test_stops`)."""
    guide, root = second_round(big, spark())
    first = guide.score(root)
    following = [7, 12, 12]
    branches = root.extend(torch.tensor([following]), torch.zeros(1, 3, dtype=torch.long), width=3)
    later = guide.score(branches).confidence[0]
    assert first.confidence.shape == (1, 1)
    assert 0 < float(first.confidence) < 1
    assert later[1] == later[2]
    assert abs(later[0] - later[1]) > 1e-6


def test_survival_reads_the_guides_estimate(big):
    guide, root = second_round(big, spark())
    seen = []

    def noted(draft):
        scored = guide.score(draft)
        seen.append(float(scored.confidence))
        return scored

    draft, _ = Chain(most_likely, Survival(0.1)).grow(noted, root, Budget(torch.tensor([20]), 5), Noise.from_seed(0, 1))
    reached = torch.tensor(seen).cumprod(0) >= 0.1
    assert int(draft.valid[:, 1:].sum()) == int(reached.sum())
    assert 0 < int(reached.sum()) < 5


# --- refusals and defaults --------------------------------------------------------------------------------------------


def test_refusals(big):
    with pytest.raises(ValueError, match="draft tokens in a block"):
        DFlash((1,), BLOCK, 50, block=1)
    with pytest.raises(ValueError, match="causal for every layer"):
        DFlash((1,), BLOCK, 50, layers=2, causal=(True,))
    with pytest.raises(ValueError, match="values 60 of 50"):
        DFlash((1,), BLOCK, 50, values=60)
    with pytest.raises(ValueError, match="make no layer"):
        DFlash((1,), BLOCK | {"hidden_size": "wide"}, 50)
    with pytest.raises(ValueError, match="of kind 'lstm' and rank 4: give one of vanilla, gated, rnn"):
        MarkovHead(50, 50, 4, 32, "lstm")
    with pytest.raises(ValueError, match="candidates 60 of 50 and markov 0"):
        DFlash2((1,), BLOCK, 50, candidates=60)
    with pytest.raises(ValueError, match="group 5: give at least 1 of each, and a group that divides 32 channels"):
        DFlash2((1,), BLOCK, 50, group=5)
    with pytest.raises(ValueError, match="tokens is 0"):
        ParallelEagle((1,), SIZES, 50, tokens=0)
    with pytest.raises(ValueError, match="16 wide, but the target's are 32"):
        run(big, GuidedDrafter(DFlash((1,), BLOCK | {"hidden_size": 16}, 50)), random_prompt(4))
    with pytest.raises(ValueError, match="hidden state 4 does not exist"):
        run(big, GuidedDrafter(DFlash((4,), BLOCK, 50)), random_prompt(4))


def test_states_are_read_where_published():
    assert spread_states(36) == (2, 10, 18, 26, 34)  # outputs of layers 1, 9, 17, 25 and 33
    assert spread_states(3) == (0, 1, 2)
    assert all(len(set(spread_states(layers))) == 5 and max(spread_states(layers)) == layers - 2 for layers in range(9, 80))
