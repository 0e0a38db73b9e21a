"""The training loop: rates, validation at checkpoints, atomic checkpoints, and several processes that train one model."""

import json
import socket
from pathlib import Path

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


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    fit(line(), squares, Fit(steps=1, lr=0.1), tmp_path / "run.pt")
    with pytest.raises(ValueError, match=r"tensor weight is \(1, 3\) there and \(1, 4\) here; delete it"):
        fit(nn.Linear(4, 1), squares, Fit(steps=2, lr=0.1), tmp_path / "run.pt")
