"""One body, several systems: what each setting does. Exactness of every kind: `test_guided`, `test_sampled_laws`, `test_products`."""

from dataclasses import replace

import pytest
import torch

from mmspec.drafters.body.heads import RegressiveAttention
from mmspec.drafters.body.systems import SYSTEMS, Coral
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train, new_net
from mmspec.drafters.features.eagle_guide import EagleFamily
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.train.distillation import Aim, DistillationLoss, RecordedWindow, aim_for, unroll
from mmspec.train.levels import LevelDrafts
from tests.conftest import llama
from tests.drafters.runs import greedy, random_prompt, run
from tests.drafters.test_guided import SIZES, gap_to_training, lively

RAGGED = random_prompt(5, 9, 1, seed=1)


def window_of(big, net, rows=3, length=12):
    ids = torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        hidden = big(ids, output_hidden_states=True).hidden_states
    return RecordedWindow(ids, torch.cat([hidden[each] for each in net.reads], -1), hidden[-1], torch.ones_like(ids, dtype=torch.bool))


# --- settings -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": ("pair", "values")}, r"layers is \('pair', 'values'\): give pair, state, value"),
        ({"layers": ("pair", "value")}, "a layer that reads values alone can only be the first"),
        ({"layers": ()}, r"layers is \(\): give pair, state, value"),
        ({"step": "gru"}, "step is 'gru': give layers, medusa, hydra, recurrent, amphista, staged-amphista, regressive-attention"),
        ({"step": "staged-amphista"}, "staged-amphista reads the outputs of 2 layers, but there are 1"),
        ({"block": 0}, "block is 0, glancing 0.0 and step 'layers': give a block of 1 or more"),
        (
            {"block": 2, "step": "hydra"},
            "block is 2, glancing 0.0 and step 'hydra': give a block of 1 or more, where draft tokens go through",
        ),
        ({"glancing": 1.0}, "a share of states below 1"),
        ({"values": 60}, "values is 60, but the target has 50"),
    ],
)
def test_settings_that_are_none_are_refused(options, said):
    with pytest.raises(ValueError, match=said) as caught:
        Coral((1, 2, 3), SIZES, 50, **options)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="3 attention heads cannot share a width of 32"):
        RegressiveAttention(32, attention_heads=3)


def test_every_system_names_its_paper_and_trains_by_its_aim(big):
    for name, system in SYSTEMS.items():
        assert system.kind == name
        assert system.settings.paper.startswith("arXiv ")
        net = begin_training(net_to_train(name, big, vocabulary=30), big, torch.arange(20, 50))
        assert len(net.vocabulary) == 30
        assert torch.equal(net.lm_head.weight, big.lm_head.weight[net.vocabulary])
        assert aim_for(net).depth == (net.most or 4)
    assert aim_for(new_net("coral", big)).alignment > 0
    assert aim_for(new_net("clover", big)).alignment == 0


@pytest.mark.parametrize("step", ["recurrent", "medusa", "amphista"])
def test_a_variant_needs_no_code(big, step):
    net = lively(new_net("coral", big, {"layers": ("pair", "state"), "step": step}))
    assert run(big, GuidedDrafter(net, Chain(most_likely)), RAGGED).sequences.tolist() == greedy(big, RAGGED)


# --- steps ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "each"),
    [("clover", {}, 9), ("hydra++", {}, 9), ("amphista-staged", {}, 9), ("coral", {}, 1), ("falcon", {}, 2), ("falcon", {"block": 3}, 3)],
)
def test_forwards_a_round(big, kind, options, each):
    """Draft tokens that heads read take no forward of the layers, those of a block one."""
    counted, heights, net = [], [], new_net(kind, big, options).eval()
    net.register_forward_hook(lambda *_: counted.append(1))
    run(big, GuidedDrafter(net, Chain(most_likely)), RAGGED, length=4, on_step=lambda step: heights.append(step.draft.height))
    assert max(heights) == 4
    assert len(counted) == sum(-(-height // each) for height in heights)


def levels_of(big, net, window, depth=3):
    with torch.no_grad():
        return list(unroll(net, window, big.get_input_embeddings(), big.get_output_embeddings(), depth))


def test_tokens_of_a_block_do_not_depend_on_one_another(big):
    """The distribution of a block's second token is that of its parent's state, whatever the first is; the next block reads both."""
    net = lively(new_net("falcon", big))
    window = window_of(big, net)
    before = levels_of(big, net, window)
    for place, same in ((6, True), (5, False)):  # column 5 holds value 6
        ids = window.ids.clone()
        ids[:, place] = (ids[:, place] + 1) % 50
        after = levels_of(big, net, replace(window, ids=ids))
        assert torch.allclose(before[1].logits[:, 5], after[1].logits[:, 5], atol=1e-5) is same
        assert not torch.allclose(before[2].logits[:, 5], after[2].logits[:, 5], atol=1e-3)


def test_the_target_is_glanced_at_in_training_only(big):
    net = lively(new_net("falcon", big))
    window = replace(window_of(big, net), seeds=[4, 5, 6])
    never = lively(new_net("falcon", big, {"glancing": 0.0}))
    plain, again = levels_of(big, net, window, 5), levels_of(big, never.train(), window, 5)
    glanced, same = levels_of(big, net.train(), window, 5), levels_of(big, net, window, 5)
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(plain, again, strict=True))
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(glanced, same, strict=True))
    assert torch.equal(plain[0].logits, glanced[0].logits)
    changed = (plain[2].logits - glanced[2].logits).abs().amax(-1) > 1e-4
    assert 0.2 < changed.float().mean() < 0.8  # either of a block's two columns


def test_states_of_draft_tokens_seen_as_the_targets_are_caught(big, monkeypatch):
    net = lively(new_net("mixture-of-attentions", big))
    assert gap_to_training(big, net) < 1e-5
    mask = EagleFamily._mask

    def all_of_it(self, model, layout, state, visible):
        mask(self, model, layout, state, visible)
        return torch.stack([visible, visible], 1)

    monkeypatch.setattr(EagleFamily, "_mask", all_of_it)
    assert gap_to_training(big, net) > 1e-3


def test_the_halves_of_the_heads_read_the_stages(big):
    net = new_net("amphista-staged", big, {"step_options": {"heads": 3}})
    out, value = torch.randn(2, 4, 64), torch.randn(2, 4, 32)
    state = net.node_states(out, value)  # at first the heads add nothing
    for level, stage in enumerate((0, 0, 1)):
        assert torch.equal(net.feature(state, level), out[..., 32 * stage : 32 * (stage + 1)])


@pytest.mark.parametrize("kind", ["clover", "hydra++"])
def test_a_distribution_depends_on_the_whole_path(big, kind):
    """Every value between the pending token and a draft token changes its distribution, also where the layers see none of them."""
    net = lively(new_net(kind, big))
    window = window_of(big, net)
    before = levels_of(big, net, window)[2].logits
    for place in (4, 5, 6):
        ids = window.ids.clone()
        ids[:, place] = (ids[:, place] + 1) % 50
        after = levels_of(big, net, replace(window, ids=ids))[2].logits
        assert not torch.allclose(before[:, 5], after[:, 5], atol=1e-3)  # after value 6: columns 3, 4, 5 hold values 4, 5, 6
        assert torch.allclose(before[:, 3], after[:, 3], atol=1e-5) is (place > 4)


# --- cross-step alignment -------------------------------------------------------------------------------------------------------------


def test_the_contrast_is_infonce_over_the_window():
    torch.manual_seed(0)
    first, deep = (LevelDrafts(torch.randn(2, 5, 8), lambda x: x, 1, blind, torch.randn(2, 5, 8)) for blind in (0, 1))
    counted = torch.zeros(2, 7, dtype=torch.bool)
    counted[0, 2:5], counted[1, 3:6] = True, True
    expected = 0.0
    for row in range(2):
        places = [position - 1 for position in range(7) if counted[row, position]]
        for place in places:
            alike = [10 * torch.cosine_similarity(deep.state[row, place], first.state[row, other], 0) for other in places]
            expected += torch.logsumexp(torch.stack(alike), 0) - alike[places.index(place)]
    assert float(deep.state_contrast(first, counted)) == pytest.approx(float(expected), rel=1e-5)
    assert deep.state_contrast(deep, counted) < deep.state_contrast(first, counted)


def test_coral_learns_states_that_agree():
    """With the contrast in the loss, states of level 2 and 3 come closer to those of level 1 than without it."""
    target, found = llama(3, seed=0).requires_grad_(False), {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        net = new_net("coral", target)
        window, example = window_of(target, net, rows=8), DistillationLoss(net, target, Aim(depth=3, alignment=weight))
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
        for _ in range(25):
            optimizer.zero_grad()
            example(window).backward()
            optimizer.step()
        levels = levels_of(target, net, window)
        found[weight] = sum(float(torch.cosine_similarity(levels[0].state, level.state, -1)[:, 3:].mean()) for level in levels[1:])
    assert found[1.0] > found[0.0] + 0.05
