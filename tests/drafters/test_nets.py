"""What every drafter owes, over the drafters that read the target: nets of every kind, each drafting the likeliest chain."""

import pytest

from mmspec.drafters.checkpoints.nets import NETS, new_net
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.ctc import CTC
from mmspec.drafters.shapes import Chain, most_likely
from tests.drafters import test_contract as contract
from tests.drafters import test_guided as guided
from tests.drafters import test_mtp as mtp
from tests.drafters.test_contract import (  # noqa: F401  the same distributions, over the drafters below
    test_a_row_drafts_the_same_alone_and_in_a_batch,
    test_draft_length_may_change_every_round,
    test_greedy_output_is_that_of_transformers,
    test_no_draft_tokens_when_none_are_asked_for,
    test_no_residue_between_calls,
    test_rows_that_end_early,
    test_sampled_output_is_that_of_plain_sampling,
    test_shapes_are_fixed_from_the_second_round_on,
)


def glide(target):
    net = guided.lively(new_net("glide", target))
    net.start_from(target)
    return net


MAKE = {
    **{name: lambda target, make=make: guided.lively(make()) for name, make in guided.MAKE.items()},
    **{f"mtp-{name}": lambda target, make=mtp.MAKE[name]: guided.lively(make()) for name in ("three", "parallel")},
    "ctc": lambda target: guided.lively(CTC(32, 4)),
    "glide": glide,
}


@pytest.fixture(params=MAKE, scope="module")
def drafter(request, big):
    return GuidedDrafter(MAKE[request.param](big), Chain(most_likely))


@pytest.mark.parametrize("drafter", ["mtp-three", "mtp-parallel", "ctc", "glide", "dflash", "dspark", "p-eagle"], indirect=True)
def test_rounds_never_read_from_the_device(drafter, big):
    contract.test_rounds_never_read_from_the_device(drafter, big)


@pytest.mark.parametrize("kind", NETS)
def test_a_net_is_told_from_a_drafter(kind):
    """What has a `begin` is taken for a drafter as it is, which reads no tree or rule."""
    assert not hasattr(NETS[kind], "begin")
