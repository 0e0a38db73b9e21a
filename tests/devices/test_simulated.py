"""The laws of `runs` see planted faults, and simulated devices behave as torch's."""

from typing import Any

import pytest
import torch

from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.heads.medusa import Medusa
from mmspec.models.session import HFSession
from tests.devices.runs import simulated, unexplained
from tests.devices.simulated import FIRST, SECOND, MixedDevices, put, simulated_devices
from tests.devices.test_generations import INPUTS, written


def run(model: Any) -> Any:
    return simulated([model, INPUTS], lambda parts, on_step: written(*parts, on_step, "lookup"))


def test_a_clean_run_has_no_faults(big):
    assert unexplained(run(big)) == []


FAULTS = {
    "a number read on the host": (lambda draft: draft.start.max().item(), "_local_scalar_dense"),
    "a branch on a value": (lambda draft: bool((draft.start > 3).any()), "_local_scalar_dense"),
    "a list": (lambda draft: draft.nodes.tolist(), "copy cuda to cpu"),
    "a copy to the host": (lambda draft: draft.nodes.cpu(), "copy cuda to cpu"),
    "an index of bools": (lambda draft: draft.nodes[draft.valid], "index by bools"),
    "nonzero": (lambda draft: draft.valid.nonzero(), "nonzero"),
    "numbers from the host": (lambda draft: torch.tensor([1, 2], device=draft.nodes.device), "copy cpu to cuda"),
    "cpu indices": (lambda draft: draft.nodes[torch.tensor([0, 1])], "copy of cpu indices"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wait_in_the_middle_of_a_round_is_seen(name, big, monkeypatch):
    fault, seen = FAULTS[name]
    score = HFSession.score
    monkeypatch.setattr(HFSession, "score", lambda self, draft: (fault(draft), score(self, draft))[1])
    found = unexplained(run(big))
    assert found
    assert all(seen in line for line in found)


def test_a_second_transfer_of_the_outcome_is_seen(big, monkeypatch):
    from mmspec.core import stopping

    fetch = stopping._fetch
    monkeypatch.setattr(stopping, "_fetch", lambda *parts: (fetch(*parts), fetch(*parts))[1])
    assert all("2 transfers of its outcome" in line for line in unexplained(run(big)))


def test_float64_in_a_forward_is_seen(big, monkeypatch):
    score = HFSession.distributions
    changed = lambda self, logits, *rest, **named: score(self, logits.double().float(), *rest, **named)  # noqa: E731
    monkeypatch.setattr(HFSession, "distributions", changed)
    assert unexplained(run(big)) == ["float64 in models/session:HFSession.score"]


def test_a_tensor_left_on_the_host_is_seen(big, monkeypatch):
    before = DefaultStopping.__init__
    monkeypatch.setattr(DefaultStopping, "__init__", lambda self, rows, most, ends=(), stops=(), device="cpu": before(self, rows, most))
    with pytest.raises(MixedDevices):
        run(big)


def test_devices_mix_as_on_a_gpu():
    with simulated_devices() as watch:
        one, other = torch.arange(3, device=FIRST), torch.arange(3, device=SECOND)
        for mixed in (
            lambda: one + other,
            lambda: one + torch.arange(3),
            lambda: torch.cat([one, torch.arange(3)]),
            lambda: one + other[0],
        ):
            with pytest.raises(MixedDevices):
                mixed()
        watch.syncs.clear()
        assert (one + torch.tensor(1)).device == FIRST
        assert one.to(SECOND).device == SECOND
        assert torch.zeros(2, device="cuda").device == FIRST
        assert not watch.syncs
        assert one.tolist() == [0, 1, 2]
        assert len(watch.syncs) == 1
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            one.numpy()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(1, device="cuda:0")


def test_a_net_on_another_device_is_refused_in_one_line(big):
    with simulated_devices():
        target, drafter = put(big, FIRST), put(Medusa(32, 3), SECOND)
        with pytest.raises(ValueError, match=r"target is on cuda:0 and the drafter, a Medusa, on cuda:1: move it with") as caught:
            written(target, INPUTS, lambda step: None, drafter)
    assert "\n" not in str(caught.value)


def test_a_copy_shares_nothing_with_its_model(big):
    copy = put(big)
    before = big.lm_head.weight[0, 0].item()
    with torch.no_grad():
        copy.lm_head.weight.zero_()
    assert copy.device == FIRST
    assert big.device.type == "cpu"
    assert big.lm_head.weight[0, 0].item() == before != 0
