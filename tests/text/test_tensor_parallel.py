"""A model that transformers splits over two processes (gloo): the tokens of one process, and one process chooses draft lengths."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

import mmspec
from mmspec.core.control import Fixed, chosen_once
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from tests.conftest import llama
from tests.forked import Started

ROOT = Path(__file__).parents[2]
CASES = {
    "chain": {"draft_length": 3},
    "tree": {"draft_length": 2, "tree": [2, 2]},
    "lookup": {"source": "lookup", "draft_length": 4},
    "sampled": {"draft_length": 3, "temperature": 0.8, "seed": 5},
    "auto": {"draft_length": "auto"},
    "auto tree": {"draft_length": "auto", "tree": [2, 2]},
    "auto lookup": {"source": "lookup", "draft_length": "auto"},
}
NEW = 24


class LengthsByRank:
    """A controller whose lengths differ from process to process, as those chosen by a clock do."""

    def __init__(self, rank: int):
        self.rank, self.rounds, self.chosen = rank, 0, []

    def begin(self):
        return self

    def length(self) -> int:
        self.rounds += 1
        self.chosen.append(1 + (self.rounds + 3 * self.rank) % 5)
        return self.chosen[-1]

    def observe(self, length, committed, seconds) -> None:
        pass


def generated(target, drafter, **options):
    ids = torch.arange(3, 11)[None].repeat(2, 1) + torch.tensor([[0], [4]])
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(8) > torch.tensor([[1], [-1]])).long()}
    return mmspec.text.generate(target, inputs, options.pop("source", drafter), max_new_tokens=NEW, **options)


SCRIPT = """
import json, sys
from pathlib import Path
import torch
from torch import distributed
from transformers import AutoModelForCausalLM
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from tests.text import test_tensor_parallel as t

torch.set_num_threads(1)
root, mutant = Path(sys.argv[1]), len(sys.argv) > 2
distributed.init_process_group("gloo")
rank = distributed.get_rank()
target = AutoModelForCausalLM.from_pretrained(root / "big", tp_plan="auto", tp_size=2).eval()
drafter = AutoModelForCausalLM.from_pretrained(root / "small").eval()
one = HFTarget(target, family_of(target)).one_choice()
found = {"split": type(target.model.layers[0].mlp.up_proj.weight).__name__, "leads": one.leads, "lengths": {}, "tokens": {}}
by_rank = t.LengthsByRank(rank)
if mutant:
    HFTarget.one_choice = lambda self: None
for name, options in {"by rank": {"draft_length": by_rank}, **t.CASES}.items():
    lengths = []
    out = t.generated(target, drafter, on_step=lambda step: lengths.append(step.draft.size), **options)
    found["tokens"][name], found["lengths"][name] = out.tokens.tolist(), lengths
found["chosen"] = by_rank.chosen
(root / f"rank{rank}.json").write_text(json.dumps(found))
distributed.destroy_process_group()
"""


def two(root: Path, *arguments) -> list:
    """Run the script as two processes of one group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "OMP_NUM_THREADS": "1"}
    begun = []
    for rank in ("0", "1"):
        folder = root / f"{'-'.join(('process', *arguments))}{rank}"
        folder.mkdir()
        env = address | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}
        begun.append(Started(root / "script.py", root, *arguments, cwd=ROOT, folder=folder, env=env))
    return [process.finish(timeout=240) for process in begun]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("split")
    llama(3, seed=0).save_pretrained(root / "big")
    llama(3, seed=0).save_pretrained(root / "small")
    noisy = AutoModelForCausalLM.from_pretrained(root / "small")
    torch.manual_seed(1)
    for parameter in noisy.parameters():
        parameter.data.add_(0.02 * parameter.std().nan_to_num() * torch.randn_like(parameter))
    noisy.save_pretrained(root / "small")
    (root / "script.py").write_text(SCRIPT)
    return root


@pytest.fixture(scope="module")
def split(folder) -> SimpleNamespace:
    """What two processes found, and the two models whole."""
    for each in two(folder):
        assert each.returncode == 0, each.stderr[-3000:]
    big, small = (AutoModelForCausalLM.from_pretrained(folder / name).eval() for name in ("big", "small"))
    return SimpleNamespace(big=big, small=small, ranks=[json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)])


@pytest.mark.parametrize("name", list(CASES))
def test_two_processes_write_the_tokens_of_one(split, name):
    alone = generated(split.big, split.small, **CASES[name] | ({"draft_length": 3} if CASES[name]["draft_length"] == "auto" else {}))
    for rank in split.ranks:
        assert rank["split"] == "DTensor"
        assert rank["tokens"][name] == alone.tokens.tolist()
    assert len({str(rank["lengths"][name]) for rank in split.ranks}) == 1


def test_drafts_are_accepted_and_rejected(split):
    stats = generated(split.big, split.small, draft_length=3).stats
    assert 0 < stats.accepted < stats.drafted


def test_the_first_rank_chooses(split):
    first, second = split.ranks
    assert (first["leads"], second["leads"]) == (True, False)
    assert first["tokens"]["by rank"] == second["tokens"]["by rank"] == generated(split.big, None, draft_length=0).tokens.tolist()
    assert first["lengths"]["by rank"] == second["lengths"]["by rank"]
    assert len(set(first["chosen"])) > 1  # the lengths of rounds vary
    assert second["chosen"] == []


def test_without_the_exchange_the_processes_fail(split, folder):
    """A mutant: each process takes the length of its own controller, and their forwards cannot be computed together."""
    assert any(each.returncode != 0 for each in two(folder, "mutant"))


def test_a_model_in_one_process_exchanges_nothing(split):
    target, control = HFTarget(split.big, family_of(split.big)), LengthsByRank(0)
    assert target.one_choice() is None
    assert chosen_once(target, control) == (control, None)
    assert chosen_once(object(), control) == (control, None)


@pytest.mark.parametrize("leads", [True, False])
def test_who_follows_has_no_controller(leads):
    control, one = LengthsByRank(0), SimpleNamespace(leads=leads, agree=lambda length: 7)
    target = SimpleNamespace(one_choice=lambda: one)
    assert chosen_once(target, control) == (control if leads else Fixed(0), one.agree)
    assert chosen_once(target, Fixed(4)) == (Fixed(4), None)
