"""The training loop: rates, validation at checkpoints, atomic checkpoints, and several processes that train one model."""

import json
import socket
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn

from mmspec.train import Fit, fit
from mmspec.train.held_out import hold_out
from tests.forked import Started

ROOT = Path(__file__).parents[2]


def line() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def squares(model: nn.Module, turn: int) -> torch.Tensor:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(turn))
    return (model(x) - x.sum(-1, keepdim=True)).square().mean()


def test_training_learns_and_validates_at_every_checkpoint(tmp_path):
    model, seen = line(), []
    losses = fit(
        model,
        squares,
        Fit(steps=30, lr=0.1, warmup=2, checkpoint_every=10),
        tmp_path / "run.pt",
        validate=lambda m, s: seen.append((s, m.training)),
        held=hold_out(["one", "other"], 1, "batches"),
    )
    assert losses[-1] < 0.2 * losses[0]
    assert seen == [(10, False), (20, False), (30, False)]
    assert not model.training
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


@pytest.fixture
def another_precision():
    """accelerate keeps the precision of a process's first training."""
    AcceleratorState._reset_state(True)
    yield "bf16"
    AcceleratorState._reset_state(True)


def test_after_a_training_in_mixed_precision_a_model_computes_in_its_own(tmp_path, another_precision):
    """accelerate puts a forward of its own before the model's, which would round its outputs to bfloat16 for ever."""
    model, x, exact = line(), torch.randn(40, 3, generator=torch.Generator().manual_seed(9)), []

    def own(module: nn.Module) -> bool:
        return torch.equal(module(x), nn.functional.linear(x, module.weight, module.bias))

    plan = Fit(steps=4, lr=0.1, warmup=0, checkpoint_every=2, mixed_precision=another_precision)
    held = hold_out(["one", "other"], 1, "batches")
    fit(model, squares, plan, tmp_path / "run.pt", validate=lambda m, s: exact.append(own(m)), held=held)
    assert [*exact, own(model)] == [True, True, True]
    assert model(x).dtype == torch.float32


def test_a_rate_of_its_own(tmp_path):
    model = nn.ModuleDict({"a": line(), "b": line()})
    before = {name: p.clone() for name, p in model.named_parameters()}
    fit(
        model,
        lambda m, turn: squares(m["a"], turn) + squares(m["b"], turn),
        Fit(steps=2, lr=1e-3, warmup=0, rates={"a.": 0.0}),
        tmp_path / "run.pt",
    )
    moved = {name: not torch.equal(p, before[name]) for name, p in model.named_parameters()}
    assert moved == {"a.weight": False, "a.bias": False, "b.weight": True, "b.bias": True}


def test_a_finished_run_is_not_run_again(tmp_path):
    plan = Fit(steps=5, lr=0.1, warmup=0)
    first, second = line(), line()
    fit(first, squares, plan, tmp_path / "run.pt")
    assert fit(second, squares, plan, tmp_path / "run.pt") == []
    assert torch.equal(first.weight, second.weight)


SCRIPT = """
import json, sys
from pathlib import Path
import torch
from tests.train.test_loop import line, squares
from mmspec.train import Fit, fit
from tests.forked import Started
from accelerate import PartialState
turns = []
def loss(model, turn):
    turns.append(turn)
    return squares(model, turn)
model = line()
fit(model, loss, Fit(steps=6, lr=0.05, warmup=0), Path(sys.argv[1]) / "run.pt")
out = Path(sys.argv[1]) / f"rank{PartialState().process_index}.json"
out.write_text(json.dumps({"turns": turns, "weight": model.weight.tolist()}))
"""


def test_two_processes_train_one_model_on_turns_of_their_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    begun = []
    for rank in ("0", "1"):  # with the variables that `accelerate launch` and torchrun set
        folder = tmp_path / f"process{rank}"
        folder.mkdir()
        begun.append(Started(script, tmp_path, cwd=ROOT, folder=folder, env=common | {"RANK": rank, "LOCAL_RANK": rank}))
    for done in [process.finish(timeout=240) for process in begun]:
        assert done.returncode == 0, done.stderr[-2000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [rank["turns"] for rank in ranks] == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    assert ranks[0]["weight"] == ranks[1]["weight"]
    alone = line()
    pairs = lambda model, step: 0.5 * (squares(model, 2 * step) + squares(model, 2 * step + 1))  # noqa: E731
    fit(alone, pairs, Fit(steps=6, lr=0.05, warmup=0), tmp_path / "alone.pt")
    assert torch.allclose(torch.tensor(ranks[0]["weight"]), alone.weight, atol=1e-5)


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match=r"Fit.steps is 0"):
        Fit(steps=0, lr=1.0)


class Teacher(nn.Module):
    """A model with a target that is neither trained nor saved, as distillations have it."""

    def __init__(self, target: nn.Module):
        super().__init__()
        self.net, self.power, self._target = line(), 2, (target,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.net(x) - self._target[0](x)).abs().pow(self.power).mean()


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(tmp_path):
    target, data, args, start = line(), torch.randn(4, 3), Namespace(rows=2, work="here"), line()
    table, memory = {"codes": np.arange(6)}, {"turns": 0}
    plan = Fit(steps=1, lr=0.1)

    def rows(turn: int) -> torch.Tensor:
        memory["turns"] += 1  # of one run: the module that is trained, and what is counted beside it, do not tell of it
        return data[: args.rows] + float(table["codes"][turn])

    def train(plan: Fit = plan) -> None:
        example = Teacher(target)
        example.net.load_state_dict(start.state_dict())
        memory["turns"] = 0
        fit(example, lambda m, turn: m(rows(turn)), plan, tmp_path / "run.pt")

    def refused(words: str, plan: Fit = plan) -> None:
        with pytest.raises(ValueError, match=rf"run.pt is of another run: {words} .*there and .* here; delete it") as caught:
            train(plan)
        assert "\n" not in str(caught.value)

    train()
    train()
    before = (tmp_path / "run.pt").read_bytes()
    for tensor, words in ((data, "loss.rows.data is"), (target.weight.data, "the model's settings"), (start.weight.data, "first weights")):
        kept = tensor[-1, -1].item()
        tensor[-1, -1] += 1
        refused(words)
        tensor[-1, -1] = kept
    table["codes"][-1] = 9
    refused("loss.rows.table.codes is")
    table["codes"][-1] = 5
    args.rows = 3
    refused("loss.rows.args.rows is 2")
    args.rows, args.work = 2, "elsewhere"
    refused("plan.lr is 0.1", replace(plan, lr=0.2))
    train(replace(plan, checkpoint_every=7))
    assert (tmp_path / "run.pt").read_bytes() == before
    state = torch.load(tmp_path / "run.pt")
    del state["identity"]
    torch.save(state, tmp_path / "run.pt")
    refused("first weights is missing")


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    fit(line(), squares, Fit(steps=1, lr=0.1), tmp_path / "run.pt")
    with pytest.raises(ValueError, match=r"tensor weight is \(1, 3\) there and \(1, 4\) here; delete it"):
        fit(nn.Linear(4, 1), squares, Fit(steps=2, lr=0.1), tmp_path / "run.pt")
