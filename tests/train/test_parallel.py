"""Data parallel training: two processes write, record and train what one process does, and launchers start one job."""

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import run
from types import SimpleNamespace

import pytest
import torch
from transformers import BatchEncoding

from mmspec.drafters.checkpoints.nets import new_net
from mmspec.train import Fit, distillation, fit, parallel
from mmspec.train.distillation import Aim, DistillationLoss
from mmspec.train.on_policy_text import Writing, write_own_text
from mmspec.train.parallel import computed_in_shares, join_processes, own_share, refuse_several_processes, shared_counts
from mmspec.train.record import record
from mmspec.utils.recipe_files import FOLDERS
from tests.conftest import llama
from tests.forked import Started
from tests.train.stopping import Stop

ROOT = Path(__file__).parents[2]
PLAN = Fit(steps=4, lr=1e-2, warmup=0, checkpoint_every=2)


class Padder:
    """What `write_own_text` needs of a tokenizer."""

    pad_token_id = 0

    def get_vocab(self):
        return {f"word {number}": number for number in range(50)}

    def pad(self, rows, return_tensors):
        longest = max(map(len, rows["input_ids"]))
        ids = [[0] * (longest - len(row)) + row for row in rows["input_ids"]]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows["input_ids"]]
        return BatchEncoding({"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)})


def made(work: Path):
    """The target, and a recording of what it wrote with windows of unequal lengths."""
    target = llama(2, seed=0).requires_grad_(False)
    prompts = [list(range(3, 5 + number % 4)) for number in range(18)]
    ids, own = write_own_text(target, Padder(), prompts, Writing(opening=6, new=12, chunk=4), work)
    own &= torch.arange(own.shape[1]) < 7 + (3 * torch.arange(len(own)) % 11)[:, None]
    return target, record(target, ids, own, new_net("eagle3", target).reads, work / "states", rows=4)


def trained(target, data, checkpoint: Path, stop_at: int | None = None) -> dict[str, torch.Tensor]:
    """The weights after training in double precision, where the order of sums does not show."""
    torch.manual_seed(0)
    here, net = join_processes(), new_net("eagle3", target)
    if hasattr(net, "start_from"):
        net.start_from(target)
    example = DistillationLoss(net, target.double(), Aim(depth=3)).double()
    stop = Stop(stop_at)

    def loss(module, turn):
        stop.check(turn // here.num_processes)
        window = data.draw(turn, 6, 2, processes=here.num_processes)
        total = None if window.total is None else window.total.double()
        return module(replace(window, features=window.features.double(), last=window.last.double(), total=total))

    fit(example, loss, PLAN, checkpoint)
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def local_counts(counts):
    """A mutant: every process divides by its own count."""
    return counts.clamp_min(1)


SCRIPT = """
import sys
from pathlib import Path
import torch
from mmspec.train import distillation
from mmspec.train.parallel import computed_in_shares, join_processes
from tests.train import test_parallel as t

root = Path(sys.argv[1])
target, data = t.made(root / "work")
found = {"whole": t.trained(target, data, root / "whole.pt")}
try:
    t.trained(target, data, root / "stopped.pt", stop_at=3)
except KeyboardInterrupt:
    found["resumed"] = t.trained(target, data, root / "stopped.pt")
distillation.shared_counts = t.local_counts
found["mutant"] = t.trained(target, data, root / "mutant.pt")
found["sizes"] = []
doubled = lambda part: (found["sizes"].append(len(part)), 2 * part)[1]
found["doubled"] = torch.cat(list(computed_in_shares(doubled, torch.arange(11), 2)))
torch.save(found, root / f"rank{join_processes().process_index}.pt")
"""


def two(script: Path, folder: Path, *arguments) -> list:
    """Run a script as the two processes that a launcher starts; both must end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    begun = []
    for rank in ("0", "1"):
        (folder / f"process{rank}").mkdir()
        env = address | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "1"}
        begun.append(Started(script, *arguments, cwd=ROOT, folder=folder / f"process{rank}", env=env))
    done = [process.finish(timeout=240) for process in begun]
    for each in done:
        assert each.returncode == 0, each.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What two processes left, and what they printed."""
    root = tmp_path_factory.mktemp("pair")
    (root / "script.py").write_text(SCRIPT)
    done = two(root / "script.py", root, root)
    return SimpleNamespace(root=root, printed=[each.stdout for each in done], ranks=[torch.load(root / f"rank{r}.pt") for r in (0, 1)])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    root = tmp_path_factory.mktemp("alone")
    target, data = made(root / "work")
    return SimpleNamespace(root=root, data=data, weights=trained(target, data, root / "run.pt"))


def apart(one, other) -> float:
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


def test_two_processes_train_what_one_process_trains(pair, alone):
    """The same weights from the same windows a step; processes that divide by their own counts end elsewhere."""
    first, second = pair.ranks
    assert apart(first["whole"], second["whole"]) == 0
    assert apart(first["whole"], alone.weights) < 1e-7
    assert apart(first["mutant"], alone.weights) > 1e-4
    untrained = new_net("eagle3", llama(2, seed=0)).state_dict()
    assert apart({name: alone.weights[name] for name in untrained}, untrained) > 1e-2


def test_two_processes_stopped_and_resumed_end_with_the_same_weights(pair):
    for rank in pair.ranks:
        assert apart(rank["resumed"], pair.ranks[0]["whole"]) == 0


def test_every_chunk_is_written_by_one_process(pair, alone):
    written = [[line for line in printed.splitlines() if line.startswith("written ")] for printed in pair.printed]
    assert [len(lines) for lines in written] == [3, 2]
    names = sorted(path.name for path in (alone.root / "work").glob("own-*.pt"))
    assert sorted(path.name for path in (pair.root / "work").glob("own-*.pt")) == names
    for name in names:
        mine, theirs = (torch.load(root / "work" / name) for root in (pair.root, alone.root))
        assert all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


def test_two_processes_record_the_same_states(pair, alone):
    rows, recorded = list(range(len(alone.data))), made(pair.root / "work")[1]  # everything is there: it is read
    theirs, ours = recorded.window(rows), alone.data.window(rows)
    for name in ("ids", "own", "features", "last"):
        assert torch.equal(getattr(theirs, name), getattr(ours, name))


def test_shares_of_a_draw_are_the_windows_of_one_process(alone):
    whole = alone.data.draw(5, 6, 2)
    shares = [alone.data.draw(10 + part, 6, 2, processes=2) for part in (0, 1)]
    assert torch.equal(torch.cat([shares[0].ids, shares[1].ids]).sort(0).values, whole.ids.sort(0).values)
    with pytest.raises(ValueError, match="rows is 1 for 2 processes"):
        alone.data.draw(0, 1, processes=2)


def test_what_is_computed_in_shares_reaches_all_processes(pair):
    for rank in pair.ranks:
        assert rank["doubled"].tolist() == list(range(0, 22, 2))
        assert rank["sizes"] == [2, 2, 2]  # 4, 4 and 3 values, shared equally
    assert [part.tolist() for part in computed_in_shares(lambda part: part, torch.arange(3), 2)] == [[0, 1], [2]]


def test_one_process_does_everything():
    assert list(own_share(range(5))) == [0, 1, 2, 3, 4]
    assert shared_counts(torch.tensor([2, 0])).tolist() == [2, 1]


# --- launchers --------------------------------------------------------------------------------------------------------


JOINS = """
import sys
from pathlib import Path
from mmspec.train.parallel import join_processes

here = join_processes()
Path(f"process-{here.process_index}").write_text(f"{sys.argv[1]}: {here.process_index} of {here.num_processes}")
"""


def test_accelerate_launch_starts_one_job_of_two_processes(tmp_path):
    """Without several GPUs it starts one process; `join_processes` starts the others.

    Each writes a file of its own: two processes that print into one pipe can write into each other's lines.
    """
    (tmp_path / "joins.py").write_text(JOINS)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "joins.py", "argument"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [each.read_text() for each in sorted(tmp_path.glob("process-*"))]
    assert said == ["argument: 0 of 2", "argument: 1 of 2"]


def test_the_recipe_is_one_job_of_two_processes(tmp_path):
    """Each writes a part of the text, and one of them the figures and the drafter."""
    made = tmp_path / "drafters"
    done = two(ROOT / "text" / "train_drafter.py", tmp_path, "medusa", "--smoke", "--work", made)
    said = [line for each in done for line in each.stdout.splitlines()]
    assert sorted(line for line in said if line.startswith("written")) == [
        "written 20 of 40 windows at temperature 0",
        "written 40 of 40 windows at temperature 1",
    ]
    assert [line.split(":")[0] for line in said if line.startswith("step")] == ["step 1", "step 2"]
    assert [json.loads(line)["step"] for line in (made / "medusa.jsonl").read_text().splitlines()] == [1, 2]
    assert "torchrun --nproc-per-node 2 text/train_drafter.py medusa" in (made / "medusa" / "card.md").read_text()


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("python /bin/accelerate launch --num_processes 2 train.py --rows 4", 2),
        ("python -m accelerate.commands.launch --num-processes=3 --cpu train.py launch", 3),
        ("python /bin/accelerate-launch --num_processes 4 --mixed_precision bf16 train.py", 4),
        ("python /bin/accelerate launch --num_processes 4 --num_machines 2 --machine_rank 0 train.py", None),
        ("python train.py", None),
    ],
)
def test_the_number_asked_for_is_read_from_the_launcher(monkeypatch, line, count):
    import psutil

    above = SimpleNamespace(cmdline=line.split)
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(parent=lambda: above))
    assert parallel._asked_for.__wrapped__() == count


def test_what_cannot_be_one_job_is_refused(monkeypatch):
    monkeypatch.setattr(parallel, "_asked_for", lambda: None)
    with monkeypatch.context() as given:
        given.setenv("ACCELERATE_MIXED_PRECISION", "no")
        given.setenv("MASTER_PORT", "29500")
        with pytest.raises(ValueError, match="accelerate launch started one process instead of several"):
            join_processes()
    join_processes()
    with monkeypatch.context() as given:  # the state of this process stands already
        given.setenv("WORLD_SIZE", "2")
        given.setenv("ACCELERATE_USE_CPU", "1")
        with pytest.raises(ValueError, match="2 processes were started, but 1 joined"):
            join_processes()


ALONE = sorted(
    path for path in ROOT.glob("*/train_*.py") if path.parent.name in FOLDERS and "join_processes(" not in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", ALONE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_recipe_that_trains_in_one_process_refuses_several(path, tmp_path):
    """Each would make the data of its own, and write the same files."""
    env = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    done = Started(path, "--smoke", cwd=tmp_path, folder=tmp_path, env=env).finish(timeout=60)
    assert done.returncode == 2
    said = f"{path.name}: 2 processes were started, but it trains in one: start it with python {path.name}"
    assert done.stderr.splitlines() == [said]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["stderr", "stdout"]


def test_a_launcher_whose_processes_start_later_is_refused_too(monkeypatch, capsys):
    """`accelerate launch` without GPUs starts one process, which would start the others in the middle of its work."""
    refuse_several_processes()
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(parallel, "_asked_for", lambda: 1)
    refuse_several_processes()
    for asked, said in ((3, "3 processes"), (None, "several processes")):
        monkeypatch.setattr(parallel, "_asked_for", lambda asked=asked: asked)
        with pytest.raises(SystemExit) as stopped:
            refuse_several_processes()
        assert stopped.value.code == 2
        assert f"{said} were started" in capsys.readouterr().err


# --- losses ---------------------------------------------------------------------------------------------------------


def test_the_loss_divides_by_the_shared_count(monkeypatch, alone):
    """A process that is one of two with equal windows has half the sum and half the count."""
    target = llama(2, seed=0).requires_grad_(False)
    example, window = DistillationLoss(new_net("medusa", target), target, Aim(depth=2)), alone.data.window([1, 2])
    window = replace(window, features=window.last)
    plain = example(window)
    monkeypatch.setattr(distillation, "shared_counts", lambda counts: 2 * local_counts(counts))
    assert torch.allclose(example(window), plain / 2)
