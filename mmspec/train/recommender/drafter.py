"""Drafters of a recommender: a small model taught on the target's own best items (AtSpeed, 2410.05165), and counts of what follows what."""

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.recsys.histories import Data
from mmspec.train.beams import BeamExample, beam_rows, best_items, draft_coverage
from mmspec.train.loop import Fit, fit
from mmspec.train.parallel import join_processes, own_share
from mmspec.train.recommender.split import last_items, of_other_users
from mmspec.train.states.identity import claim_folder, keyed
from mmspec.utils.files import write_json

PART = 1000  # users searched between two files


@dataclass(frozen=True, kw_only=True)
class ItemDrafterSettings:
    """A drafter's size and training.

    Args:
        sizes: entries of its Llama config.
        loss: weights, by name, of the losses on distributions that searches ask for.
        past: the same of the distributions inside histories; {} for none.
        users: training users whose best items the target searches.
        k: best items a user.
        steps: optimiser steps.
        rows: users a step.
        lr: peak learning rate.
        precision: "bf16" or "no".
        checkpoints: how often the training is saved.
    """

    sizes: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=lambda: {"kl": 0.3})
    past: dict[str, float] = field(default_factory=lambda: {"kl": 1.0})
    users: int = 12000
    k: int = 20
    steps: int = 1600
    rows: int = 32
    lr: float = 4e-3
    precision: str = "no"
    checkpoints: int = 4


SIZES = {"hidden_size": 144, "intermediate_size": 368, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def train_item_drafter(target: Any, data: Data, settings: ItemDrafterSettings, work: Path, held: int = 200) -> nn.Module:
    """Train a small model of the target's kind on the items that the target finds; a run that was stopped goes on from `work`.

    Args:
        target: the target, on the device of the training.
        data: histories and the catalogue.
        settings: sizes and training.
        work: folder for searches and checkpoints.
        held: users on whom target calls are counted at each checkpoint.

    Returns:
        The drafter in evaluation mode, with weights that half precision holds.

    Raises:
        ValueError: for a work folder with a run of other settings.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    claim_folder(work / "settings.json", asdict(settings), "a training with", {}, join_processes())
    tokens = {name: getattr(target.config, name) for name in ("vocab_size", "bos_token_id", "pad_token_id", "max_position_embeddings")}
    torch.manual_seed(0)
    drafter = LlamaForCausalLM(LlamaConfig(**SIZES | settings.sizes, **tokens, eos_token_id=None, tie_word_embeddings=True))
    example = BeamExample(drafter, target, data.catalogue.trie, settings.loss, settings.past)
    data = of_other_users(data, held, 0)
    with join_processes().main_process_first():
        users = _searched(target, data, settings, work)
    histories = [items[:-1] for items in data.held]
    k = max(1, min(10, len(data.catalogue) // 4))

    def loss(module: nn.Module, turn: int) -> Tensor:
        last = max(1, len(users) - settings.rows + 1)
        start = random.Random(turn // join_processes().num_processes).randrange(last)
        some, best = zip(*own_share(users[start : start + settings.rows]), strict=True)
        return module(beam_rows(data.catalogue, some, best).to(target.device))

    def validate(module: nn.Module, step: int) -> None:
        found = draft_coverage(target, drafter.eval(), data.catalogue, histories, k, 4 * k)
        print(f"step {step}: {found['calls']:.3f} calls a user, levels {found['levels']}", flush=True)

    every = max(1, settings.steps // settings.checkpoints)
    plan = Fit(steps=settings.steps, lr=settings.lr, checkpoint_every=every, mixed_precision=settings.precision)
    fit(example.to(target.device), loss, plan, work / "checkpoint.pt", title="drafter", validate=validate, held=last_items(data))
    return drafter.half().float().eval()


def _searched(target: Any, data: Data, settings: ItemDrafterSettings, work: Path) -> list[tuple[list, list]]:
    """Beginnings of histories, and the target's best items behind each, in the order of their lengths; a file for each part of them."""
    pick = random.Random(0)
    histories = [list(items[: pick.randint(1, len(items))]) for items in data.users(0, settings.users)]
    histories.sort(key=len)
    found: list[list] = []
    for start in range(0, len(histories), PART):
        path = keyed(work / f"searched-{start:09d}.json", target, histories[start : start + PART], settings.k)
        if not path.exists():
            write_json(path, best_items(target, data.catalogue, histories[start : start + PART], settings.k))
            print(f"searched {min(start + PART, len(histories))} of {len(histories)} users", flush=True)
        found += json.loads(path.read_text(encoding="utf-8"))
    return list(zip(histories, found, strict=True))
