"""The nets that ship with mini vlm: they read its states, change nothing it says, and pay."""

import pytest
import torch

import mmspec
from mmspec.minis import HOME
from mmspec.minis import vlm_model as sights

CAPTIONS = 24
KINDS = {"hivis": 4.4, "vispec": 4.4}  # least tokens a call with five draft tokens


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("vlm")


@pytest.fixture(scope="module")
def inputs(mini):
    return sights.inputs_of(mini.processor, sights.asked(5 * 10**9, CAPTIONS, "describe"))


@pytest.fixture(scope="module")
def plain(mini, inputs):
    return mmspec.text.generate(mini.target, inputs, max_new_tokens=sights.LONGEST)


@pytest.mark.parametrize("tree", [None, "comb"], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_it_changes_nothing_and_pays(mini, inputs, plain, kind, tree):
    net = mini.drafters[kind]
    assert net.kind == kind
    out = mmspec.text.generate(mini.target, inputs, net, max_new_tokens=sights.LONGEST, draft_length=5, tree=tree)
    assert out.sequences.equal(plain.sequences)
    assert out.stats.tokens_per_call > KINDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_is_that_of_the_target(mini, kind):
    sampled, drafted = (
        mmspec.text.generate(mini.target, mini.examples, drafter, max_new_tokens=32, temperature=1.0, seed=3, draft_length=4)
        for drafter in (None, mini.drafters[kind])
    )
    assert drafted.sequences.equal(sampled.sequences)
    assert drafted.stats.accepted > 0


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_another_row_cost_tokens(mini, inputs, plain, kind):
    """A net that is handed the states of the row before, and so what another picture meant, draft tokens worse; the output stays."""
    from mmspec.drafters.guided import GuidedDrafter

    class Misled:
        def __init__(self, guide):
            self.guide, self.most = guide, None
            self.root, self.score, self.close = guide.root, guide.score, guide.close

        def observe(self, draft, scored, verdict):
            hidden = None if scored.hidden is None else torch.roll(scored.hidden, 1, 0)
            self.guide.observe(draft, type(scored)(scored.p, hidden, scored.context, scored.healthy), verdict)

    class Source:
        def guide(self, session):
            return Misled(mini.drafters[kind].guide(session))

    out = mmspec.text.generate(mini.target, inputs, GuidedDrafter(Source()), max_new_tokens=sights.LONGEST, draft_length=5)
    assert out.sequences.equal(plain.sequences)
    assert out.stats.tokens_per_call < KINDS[kind] - 1


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_small_and_has_a_card(kind):
    folder = HOME / "vlm" / "drafters" / kind
    assert sum(path.stat().st_size for path in folder.iterdir()) < 400_000
    assert "tokens a call" in (folder / "card.md").read_text(encoding="utf-8").lower()
