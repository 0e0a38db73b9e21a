"""Whole generations on a simulated GPU: one device, one synchronisation a round, no needless float64, and the CPU's own output.

Every modality, source of drafts, rule and several trees. After the first round the host waits for the device only where the outcome is
transferred, and at the sites of `runs.MORE_SYNCS`.
"""

from itertools import cycle
from typing import Any

import pytest
import torch

from mmspec import text
from mmspec.core.rules.block import Block
from mmspec.core.rules.lossy.typical import Typical
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.token import Token
from tests.devices.cases import CASES
from tests.devices.runs import OnStep, Run, plain, simulated, unexplained
from tests.devices.simulated import FIRST, put, simulated_devices
from tests.drafters.runs import greedy, random_prompt
from tests.drafters.sources import GROWN, OWN_FORM, TREES, World

INPUTS = random_prompt(3, 6, seed=8)
ONE_ROUND = ("vectors plain, masked", "speech diffusion", "items llama sample, drafted")  # there is no later round to look at


@pytest.mark.parametrize("name", CASES)
def test_a_gpu_gives_the_cpus_output_and_waits_once_a_round(name):
    case = CASES[name]
    expected = plain(case.call(case.parts(), lambda step: None))
    run = simulated(case.parts(), case.call)
    if case.vectors:
        torch.testing.assert_close(torch.tensor(run.output), torch.tensor(expected), atol=1e-3, rtol=1e-3)
    else:
        assert run.output == expected
    assert case.stages or not unexplained(run)
    assert run.rounds or case.stages or name in ONE_ROUND


# --- text: every source of drafts, in a chain and in a tree ---------------------------------------------------------------

TREE = cycle(tree for tree in TREES if tree != "chain")
MADE_BEFORE = (  # their weights are drawn anew
    "near",
    "pard",
    "larger-vocabulary",
    "smaller-vocabulary",
    "cascade",
    "relay",
    "relay-of-models",
)  # their weights are drawn anew
SOURCES = [
    *((name, "chain", 0.0) for name in (*GROWN, *OWN_FORM)),
    *((name, next(TREE), 1.0) for name in GROWN),
    *((name, "chain", 1.0) for name in ("name lookup", "name suffix", "jacobi-drawn", "lookahead-drawn", "relay")),
]


@pytest.fixture(scope="module")
def world(big, small, tmp_path_factory):
    noise = random_prompt(40, 40, seed=2)["input_ids"].tolist()
    return World(big, small, greedy(big, INPUTS) + noise, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def on_device(world):
    with simulated_devices():
        big, small = put([world.big, world.small])
        return World(big, small, world.texts, world.folder), {key: value.to(FIRST) for key, value in INPUTS.items()}


def written(model: Any, inputs: Any, on_step: OnStep, source: Any = None, **options: Any) -> Any:
    options = {"draft_length": 3, "max_new_tokens": 5, "seed": 5} | options
    return text.generate(model, inputs, source, on_step=on_step, **options).tokens


@pytest.fixture(scope="module")
def expected(world):
    return {heat: plain(written(world.big, INPUTS, lambda step: None, temperature=heat)) for heat in (0.0, 1.0)}


def run_of(world: World, on_device: Any, name: str, **options: Any) -> Run:
    there, inputs = on_device
    make, temperature = {**GROWN, **OWN_FORM}[name], options["temperature"]
    before = put(make(world, temperature)) if name in MADE_BEFORE else None

    def call(parts: Any, on_step: OnStep) -> Any:
        source = make(there, temperature) if before is None else before
        source = put(source) if isinstance(source, torch.nn.Module) and source not in (there.big, there.small) else source
        return written(there.big, inputs, on_step, source, **options)

    return simulated(None, call)


@pytest.mark.parametrize(("name", "tree", "temperature"), SOURCES)
def test_every_source_of_drafts(name, tree, temperature, world, on_device, expected):
    shape = put(TREES[tree]) if tree.startswith("joint-path") else TREES[tree]  # they hold a table
    run = run_of(world, on_device, name, tree=shape, temperature=temperature)
    assert run.output == expected[temperature]
    assert run.rounds
    assert not unexplained(run)


RULES = {
    "match": (Match(), None),
    "token": (Token(), None),
    "block": (Block(), None),
    "siblings": (without_replacement_rule(), (3, 2)),
    "typical": (Typical(), None),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule(name, world, on_device):
    rule, tree = RULES[name]
    options = {"accept": rule, "tree": tree, "temperature": 1.0}
    run = run_of(world, on_device, "small", **options)
    assert run.output == plain(written(world.big, INPUTS, lambda step: None, world.small, **options))
    assert not unexplained(run)
