"""The first piece of sound, by counts: no token-exact method runs a network more often before it than plain decoding does."""

from collections import Counter

import pytest
import torch
from torch import nn

import mmspec
from mmspec.bench.compare.speech import speech_methods
from mmspec.core.control import Fixed
from mmspec.speech import stream

TEXT, VOICE = "nine zero two", "theo"
NAMES = ("suffix", "model", "heads", "heads 3", "tree", "tree tau 1")
"""Every token-exact method that is compared on mini speech."""


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("speech")


@pytest.fixture(scope="module")
def methods(mini):
    return speech_methods(mini)


def modules_of(drafter):
    """The networks of a drafter; none of one that looks up."""
    if drafter is None or isinstance(drafter, str):
        return []
    net = drafter if isinstance(drafter, nn.Module) else drafter.model
    return [each for each in net.modules() if not list(each.children())]


def before_the_first_piece(mini, options):
    """What ran until the first piece: the target's calls, the columns they scored, calls of the drafter's layers; and the piece."""
    counted, handles = Counter(), []

    def target(module, args, inputs):
        ids = inputs.get("input_ids", args[0] if args else inputs.get("inputs_embeds"))
        counted.update(calls=1, columns=ids.shape[1])

    handles.append(mini.target.model.model.register_forward_pre_hook(target, with_kwargs=True))
    handles += [each.register_forward_pre_hook(lambda *_: counted.update(drafter=1)) for each in modules_of(options.get("drafter"))]
    try:
        piece = next(stream(mini.target, TEXT, voice=VOICE, seed=3, max_seconds=1.0, **options))
    finally:
        for handle in handles:
            handle.remove()
    return counted["calls"], counted["columns"], counted["drafter"], piece


def test_these_are_all_token_exact_methods(mini, methods):
    from mmspec.run.request import Request

    exact = [
        name
        for name, told in methods.items()
        if Request.of(accept=told.get("accept", "exact"), temperature=1.0).rule().exactness == "token-exact"
    ]
    assert set(exact) == {"plain", *NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_drafted_before_the_first_piece(mini, methods, name):
    calls, columns, drafter, piece = before_the_first_piece(mini, methods["plain"])
    assert drafter == 0
    assert calls > 2
    mine = before_the_first_piece(mini, methods[name])
    assert mine[:3] == (calls, columns, 0)
    assert torch.equal(mine[3], piece)


def test_a_controller_of_ones_own_drafts_before_it(mini, methods):
    """The counts do see a drafter that runs before the first piece."""
    plain = before_the_first_piece(mini, methods["plain"])
    mine = before_the_first_piece(mini, methods["model"] | {"draft_length": Fixed(4)})
    assert mine[0] < plain[0]
    assert mine[1] > plain[1]
    assert mine[2] > 0
    assert torch.equal(mine[3], plain[3])
