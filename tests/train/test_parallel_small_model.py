"""Small models distilled by several processes: the weights of one process, on the target's text and on text of the small model."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmspec.train import fit
from mmspec.train.on_policy_text import Writing, write_own_text
from mmspec.train.parallel import join_processes
from mmspec.train.small_model.architecture import small_model
from mmspec.train.small_model.loss import SmallModelLoss
from mmspec.train.small_model.text import TextSource, TrainingText
from tests.conftest import llama
from tests.train.stopping import Stop
from tests.train.test_parallel import PLAN, ROOT, Padder, apart, two

KINDS = ("off-policy", "speculative")


def made(work: Path):
    """The target in double precision, and what it wrote in windows of unequal lengths."""
    target = llama(2, seed=0).requires_grad_(False)
    prompts = [list(range(3, 5 + number % 4)) for number in range(18)]
    ids, own = write_own_text(target, Padder(), prompts, Writing(opening=6, new=12, chunk=4), work)
    own &= torch.arange(own.shape[1]) < 7 + (3 * torch.arange(len(own)) % 11)[:, None]
    return target.double(), ids, own


def trained(target, ids, own, kind: str, checkpoint: Path, stop_at: int | None = None) -> dict[str, torch.Tensor]:
    """The small model's weights after 4 steps of 6 windows in double precision, where the order of sums does not show."""
    torch.manual_seed(0)
    here, model = join_processes(), small_model(target, layers=1).double()
    text = TrainingText(target, ids, own, 2, TextSource(kind=kind, share=0.5, new=6, k=5), rows=4)
    example = SmallModelLoss(model, target, {"kl": 1.0}, logits=50 * 9)

    stop = Stop(stop_at)

    def loss(module, turn):
        stop.check(turn // here.num_processes)
        return module(text.draw(model, turn, 6, here.num_processes))

    fit(example, loss, PLAN, checkpoint)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


SCRIPT = """
import sys
from pathlib import Path
import torch
from mmspec.train.parallel import join_processes
from mmspec.train.small_model import loss
from tests.train import test_parallel_small_model as t
from tests.train.test_parallel import local_counts

root = Path(sys.argv[1])
data = t.made(root / "work")
found = {kind: t.trained(*data, kind, root / f"{kind}.pt") for kind in t.KINDS}
try:
    t.trained(*data, "speculative", root / "stopped.pt", stop_at=3)
except KeyboardInterrupt:
    found["resumed"] = t.trained(*data, "speculative", root / "stopped.pt")
loss.shared_counts = local_counts
found["mutant"] = t.trained(*data, "off-policy", root / "mutant.pt")
text = t.TrainingText(*data, 2, t.TextSource(), rows=4)
found["states"] = text.states
torch.save(found, root / f"rank{join_processes().process_index}.pt")
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """What two processes left."""
    root = tmp_path_factory.mktemp("pair")
    (root / "script.py").write_text(SCRIPT)
    two(root / "script.py", root, root)
    return [torch.load(root / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    root = tmp_path_factory.mktemp("alone")
    data = made(root / "work")
    return SimpleNamespace(data=data, weights={kind: trained(*data, kind, root / f"{kind}.pt") for kind in KINDS})


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_distil_what_one_process_distils(pair, alone, kind):
    assert apart(pair[0][kind], pair[1][kind]) == 0
    assert apart(pair[0][kind], alone.weights[kind]) < 1e-7
    untrained = small_model(alone.data[0], layers=1).state_dict()
    assert apart(alone.weights[kind], untrained) > 1e-2
    assert apart(alone.weights["off-policy"], alone.weights["speculative"]) > 1e-3


def test_processes_that_divide_by_their_own_counts_end_elsewhere(pair, alone):
    assert apart(pair[0]["mutant"], alone.weights["off-policy"]) > 1e-4


def test_two_processes_stopped_and_resumed_end_with_the_same_weights(pair):
    for rank in pair:
        assert apart(rank["resumed"], pair[0]["speculative"]) == 0


def test_all_processes_have_the_targets_states_of_all_windows(pair, alone):
    expected = TrainingText(*alone.data, 2, TextSource(), rows=4).states
    for rank in pair:
        assert torch.allclose(rank["states"], expected, atol=1e-9)


def test_the_recipe_is_one_job_of_two_processes(tmp_path):
    """Text is written by both, figures and the folder by one; the card has the command."""
    options = ["--smoke", "--windows", "12", "--text", "speculative", "--work", tmp_path / "work"]
    first, second = two(ROOT / "text" / "distil_model.py", tmp_path, *options)
    said = [[line.split(":")[0] for line in each.stdout.splitlines() if line.startswith(("memory", "step"))] for each in (first, second)]
    assert said == [["memory", "step 1", "step 2"], []]
    assert [json.loads(line)["step"] for line in (tmp_path / "work" / "acceptance.jsonl").read_text().splitlines()] == [1, 2]
    assert "torchrun --nproc-per-node 2 text/distil_model.py" in (tmp_path / "work" / "model" / "README.md").read_text()
