"""State drafts: one layer that reads the target's last hidden states drafts for every method, and the target's distribution stays."""

from itertools import product

import pytest
import torch

from mmspec.bench.check.projection import project
from mmspec.core.rules.base import DISTRIBUTION_EXACT
from mmspec.vision import ContinuousPictures, Sampling, generate
from mmspec.vision.checkpoints.latents import load_continuous_model, load_latent_drafter, save_model
from mmspec.vision.continuous.generation import LatentDraft
from mmspec.vision.continuous.state_draft import StateDraft
from tests.oracles.gaussians import FromTarget
from tests.vision import small_nextstep
from tests.vision.pushed import prompts, small
from tests.vision.small_states import SIZES, taught, untaught

METHODS = ("path", "stepwise", "block", "aligned", "aligned-block", "d-grs")
CASES = [
    *product(METHODS, (None, 2.0), (None,)),
    *(("path", None, 3), ("stepwise", 2.0, 3), ("block", None, 3)),  # every pair of method, guidance and steps
    *(("path", 2.0, "auto"), ("stepwise", None, "auto"), ("block", 2.0, "auto")),
    ("density", None, None),
]


def model(method: str, own_head: bool = False) -> ContinuousPictures:
    return taught("mixture" if method == "density" else "diffusion", own_head)[0]


@pytest.mark.parametrize(("method", "guidance", "draft_steps"), CASES)
def test_a_picture_is_the_same_alone_and_in_a_batch(method, guidance, draft_steps):
    """Rows keep different numbers of draft tokens in a round, and end in different rounds."""
    ragged, options = [], {"method": method, "guidance": guidance, "window": 4}
    if draft_steps == "auto":  # pictures depend on measured seconds: only what is counted is compared
        out = generate(model(method), prompts(3), seed=5, draft_steps="auto", **options)
        assert out.stats.tokens == 75
        return
    options |= {} if draft_steps is None else {"draft_steps": draft_steps}
    together = generate(model(method), prompts(4), seed=5, on_step=lambda step: ragged.append(step.committed.accepted), **options)
    assert together.stats.exactness == DISTRIBUTION_EXACT
    assert any(len(set(each)) > 1 for each in ragged)
    alone = generate(model(method), [3], seed=8, **options)
    assert (alone.tokens - together.tokens[3:]).abs().max() < 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"method": "path"},
        {"method": "path", "guidance": 2.0, "draft_steps": 3},
        {"method": "path", "temperature": 0.8, "own_head": True},
        {"method": "stepwise", "draft_steps": 3, "window": 3},
        {"method": "block", "guidance": 2.0},
        {"method": "aligned", "drafter": LatentDraft(untaught(), Sampling(steps=4))},
        {"method": "aligned-block", "guidance": 2.0},
        {"method": "d-grs"},
        {"method": "density"},
    ],
    ids=lambda options: "-".join(str(each) for each in options.values() if not isinstance(each, LatentDraft)),
)
def test_it_is_exact(options):
    found = project(model(options["method"], options.pop("own_head", False)), prompts(80), seed=3, **options)
    assert found.tokens == 2000
    assert found.stats.exactness == DISTRIBUTION_EXACT
    assert found.stats.accepted > 0
    assert found.p_value > 0.01


@pytest.mark.parametrize("method", ["path", "aligned", "density"])
def test_plain_draws_after_a_rejection_show(method):
    found = project(model(method), prompts(160), method, seed=3, accept=FromTarget())
    assert found.p_value < 1e-6


def test_a_draft_that_is_not_recorded_shows(monkeypatch):
    """A planted bug: draft tokens are not drawn from the distribution that is recorded as q."""
    monkeypatch.setattr("mmspec.vision.continuous.methods.sampled", lambda q, keys: (q.sample(keys) + 0.2, q))
    assert project(model("aligned"), prompts(160), "aligned", seed=3).p_value < 1e-6


def test_a_taught_draft_is_accepted_more_often():
    """At every place of a draft; places behind the first read the draft's own states."""
    facts = taught()[1]
    for place in (1, 2, 3):
        assert facts[f"acceptance, token {place}"] > 0.3
    rates = [
        (stats := generate(small(**SIZES), prompts(8), method="path", drafter=draft, seed=1).stats).accepted / stats.judged
        for draft in (untaught(), taught()[0].drafter)
    ]
    assert rates[1] > rates[0] + 0.1


def test_levels_of_training_are_what_drafting_computes():
    """Against a forward for every column, in which a path's last tokens stand beside the draft's own states and all others beside the
    target's."""
    net, generator = untaught(), torch.Generator().manual_seed(0)
    states, embeds = (torch.randn(2, 6, 24, generator=generator) for _ in range(2))
    cells = torch.arange(6).expand(2, -1)
    levels = net.unrolled(states, embeds, cells, 3)
    assert torch.allclose(levels[0], net(states, embeds, cells), atol=1e-5)
    for end in range(2, 6):
        mixed = states[:, : end + 1].clone()
        for level in range(3):
            first = end - 2 + level
            if level:
                mixed[:, first] = net(mixed[:, :first], embeds[:, :first], cells[:, :first])[:, -1]
            out = net(mixed[:, : first + 1], embeds[:, : first + 1], cells[:, : first + 1])[:, -1]
            assert torch.allclose(levels[level][:, first - level], out, atol=1e-5)


def test_calls_of_both_heads_are_counted():
    """Path: the draft runs its chains step by step, or with draft_steps several steps a call; the target judges a draft in one."""
    plain, serial, inside = (
        generate(model("path"), [1], method=method, seed=2, **options).stats
        for method, options in (("plain", {}), ("path", {"window": 3}), ("path", {"window": 3, "draft_steps": 5}))
    )
    assert plain.draft_head_calls == 0
    assert serial.draft_head_calls >= 8 * serial.drafted // 2
    assert inside.draft_head_calls / inside.drafted < 0.8 * serial.draft_head_calls / serial.drafted
    assert inside.head_calls / inside.tokens < 0.8 * serial.head_calls / serial.tokens
    assert serial.target_calls < plain.target_calls


def test_a_folder_drafts(tmp_path):
    net = model("path").drafter
    save_model(net, tmp_path / "state")
    target = ContinuousPictures(model("path").model)
    found = generate(target, [1, 2], str(tmp_path / "state"), method="path", seed=4)
    assert torch.equal(
        found.tokens, generate(target, [1, 2], load_latent_drafter(tmp_path / "state", target), method="path", seed=4).tokens
    )
    assert isinstance(load_continuous_model(tmp_path / "state"), StateDraft)
    assert found.stats.accepted > 0


@pytest.mark.parametrize("guidance", [None, 3.0])
@pytest.mark.parametrize("places", [True, False])
def test_nextstep(places, guidance):
    """A backbone with prompts of unequal length, a projection behind its last states, and places added to them."""
    target = small_nextstep.pictures(places)
    draft = StateDraft.beside(small_nextstep.network(places), num_attention_heads=4).eval()
    texts, options = ["a cat", "a red boat on the sea"], {"method": "path", "sampling": Sampling(sigma_out=0.3), "guidance": guidance}
    together = generate(target, texts, draft, seed=6, **options)
    assert together.stats.drafted > 0
    for row, text in enumerate(texts):
        alone = generate(target, [text], draft, seed=6 + row, **options)
        assert (alone.tokens - together.tokens[row : row + 1]).abs().max() < 1e-3


REFUSED = [
    (
        {"drafter": StateDraft.beside(small(**SIZES | {"hidden_size": 32}))},
        "the drafter's hidden_size is 32, the target's 24: take a state draft",
    ),
    ({"drafter": StateDraft.beside(small(**SIZES | {"channels": 3}))}, "the drafter's channels is 3, the target's 4: take a state draft"),
    ({"drafter": untaught("mixture")}, "head is mixture, the target's diffusion: take a state draft"),
    ({"drafter": untaught(), "method": "plain"}, "drafter is .* method 'plain' does not"),
    ({"drafter": "nowhere"}, "drafter is 'nowhere', which is no folder with a drafter of continuous tokens"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words[:30] for _, words in REFUSED])
def test_what_does_not_fit_is_refused_in_one_line(options, words):
    with pytest.raises(ValueError, match=words) as refused:
        generate(small(**SIZES), [0], **{"method": "path"} | options)
    assert "\n" not in str(refused.value)
