"""Frozen-target drafts: what is held, where it comes from, what it costs, and when it is right."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import DDPMPipeline, DDPMScheduler

from mmspec.bench.synthetic.diffusion import GaussianMixtureData, MixtureNet, variance_preserving
from mmspec.drafters.jacobi.frozen import HOLDS, REUSES, FrozenTarget
from mmspec.vision.diffusion.pipeline import denoise
from mmspec.vision.diffusion.target import DiffusionTarget


def pipeline(predicts: str = "epsilon", mixture: GaussianMixtureData | None = None) -> Any:
    scheduler = DDPMScheduler(clip_sample=False, prediction_type=predicts)
    return DDPMPipeline(MixtureNet(mixture or GaussianMixtureData.random(8, 3), variance_preserving(scheduler), predicts), scheduler)


def run(drafter: Any, predicts: str = "epsilon", count: int = 20, **rest: Any) -> tuple[Any, list]:
    """What was drawn, and every round."""
    rounds: list = []
    settings = {"steps": 20, "draft_length": 4} | rest
    return denoise(pipeline(predicts), count, drafter=drafter, on_step=rounds.append, **settings), rounds


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("hold", HOLDS)
def test_every_draft_token_is_drawn_by_the_targets_kernel_with_what_is_held(reuse, hold):
    """Each q is the target's own distribution after the draft token before it, with one picture or one output a round."""
    _, rounds = run(FrozenTarget(reuse, hold))

    target, seen = DiffusionTarget.of(pipeline(), 20), 0
    for step in rounds:
        draft = step.draft
        if not draft.valid[:, 1:].any():
            continue
        rows, draft_token = draft.valid[:, 1:].nonzero(as_tuple=True)
        x, at, q = draft.nodes[rows, draft_token], draft.start[rows] + draft_token, draft.q.picked(rows, draft_token)
        out = (q.mean - target.noise_schedule.keep[at][:, None] * x) / target.noise_schedule.gain[at][:, None]
        held = target.x0_prediction.picture(x, at, out) if hold == "picture" else out
        first = {row: held[(rows == row) & (draft_token == 0)] for row in rows.unique().tolist()}
        assert torch.allclose(held, torch.cat([first[row] for row in rows.tolist()]), atol=1e-8)
        assert torch.equal(q.scale[:, 0], target.noise_schedule.std[at])
        seen += len(rows)
    assert seen > 100


def test_the_first_draft_token_of_a_root_draft_is_always_right():
    out, rounds = run(FrozenTarget("root"))
    assert out.stats.acceptance_by_position[0] == 1.0
    assert out.stats.target_calls == 2 * len(rounds)
    assert all(step.draft.size > 1 for step in rounds)


@pytest.mark.parametrize("reuse", ["nearest", "parent"])
def test_other_drafts_cost_no_call_and_the_first_round_is_plain(reuse):
    out, rounds = run(FrozenTarget(reuse))
    assert out.stats.target_calls == len(rounds)
    assert rounds[0].draft.size == 1
    assert all(step.draft.size > 1 for step in rounds[1:])


def test_asking_the_network_costs_more_than_it_brings():
    calls = {reuse: run(FrozenTarget(reuse), count=60)[0].stats.row_calls for reuse in REUSES}
    assert max(calls["nearest"], calls["parent"]) < calls["root"]


def test_holding_the_picture_does_not_hang_on_what_the_network_predicts():
    drawn = {predicts: run("frozen", predicts)[0] for predicts in ("epsilon", "sample", "v_prediction")}
    for out in drawn.values():
        assert torch.allclose(out.samples, drawn["sample"].samples, atol=1e-6)
    outputs = {predicts: run(FrozenTarget(hold="output"), predicts)[0] for predicts in drawn}
    assert outputs["sample"].stats.accepted == drawn["sample"].stats.accepted > outputs["epsilon"].stats.accepted


def test_a_network_that_foresees_one_picture_is_foretold():
    point = GaussianMixtureData.random(8, 1)
    point = replace(point, deviations=torch.zeros_like(point.deviations))
    scheduler = DDPMScheduler(clip_sample=False)
    certain = DDPMPipeline(MixtureNet(point, variance_preserving(scheduler)), scheduler)
    out = denoise(certain, 5, drafter="frozen", steps=16, draft_length=4)
    assert out.stats.rejected == 0
    assert out.stats.row_calls == 5 * 4  # one state, then five a round
    assert torch.allclose(out.samples.flatten(1), point.means.expand(5, -1), atol=1e-6)


def test_the_last_step_is_never_drafted():
    _, rounds = run("frozen", draft_length=50)
    for step in rounds:
        assert (step.draft.start + step.draft.valid[:, 1:].sum(1))[step.draft.valid[:, 0]].max() < 20


def test_a_frozen_target_is_of_use_to_networks_only():
    with pytest.raises(ValueError, match="and object has none"):
        FrozenTarget().begin(None, object())
    with pytest.raises(ValueError, match="reuse is 'last'; valid: nearest, parent, root"):
        FrozenTarget("last")
    with pytest.raises(ValueError, match="hold is 'mean'; valid: picture, output"):
        FrozenTarget(hold="mean")
