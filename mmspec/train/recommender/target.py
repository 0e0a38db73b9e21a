"""A recommender from nothing: a small Llama that writes the next item's semantic id after those of a user's history (TIGER, 2305.05065)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.recsys.catalogue import Catalogue, Item
from mmspec.recsys.generation import recommend
from mmspec.recsys.histories import Data, batches
from mmspec.train.loop import Fit
from mmspec.train.parallel import join_processes, refuse_several_processes
from mmspec.train.recommender.best_state import fit_best
from mmspec.train.recommender.quality import ranking_quality
from mmspec.train.recommender.split import last_items
from mmspec.train.recommender.walks import with_walks
from mmspec.train.states.identity import claim_folder


@dataclass(frozen=True, kw_only=True)
class RecommenderSettings:
    """A recommender's size and training.

    Args:
        hidden_size: width.
        intermediate_size: width of the feed-forward layers; 2.75 times `hidden_size` by default.
        layers: number of layers.
        heads: attention heads; half as many keys and values where it is even.
        dropout: of attention.
        drop: chance to leave an item of a training history out.
        walks: share of the training histories that go on by co-occurrence counts (`with_walks`).
        unseen: whether validation leaves out items of the history.
        steps: optimiser steps.
        rows: histories a step.
        lr: peak learning rate.
        weight_decay: weight decay of matrices.
        warmup: steps of linear warm-up.
        validations: how often the model is validated.
        precision: "bf16" or "no".
        seed: seed of the weights.
    """

    hidden_size: int = 128
    intermediate_size: int | None = None
    layers: int = 4
    heads: int = 4
    dropout: float = 0.15
    drop: float = 0.15
    walks: float = 0.5
    unseen: bool = True
    steps: int = 6000
    rows: int = 128
    lr: float = 1.5e-3
    weight_decay: float = 0.3
    warmup: int = 100
    validations: int = 10
    precision: str = "no"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "layers", "heads", "steps", "rows", "validations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size is {self.hidden_size} and heads is {self.heads}: a head's width must be a whole, even number")


def recommender_model(catalogue: Catalogue, size: int, settings: RecommenderSettings) -> Any:
    """Make a Llama over all codes, used or not, with random weights.

    Args:
        catalogue: its items, whose codes begin at token 2.
        size: codes a level.
        settings: width and depth.

    Returns:
        The model. Its vocabulary is a multiple of 4.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    first = len(catalogue.before) + 1
    positions = max(128, first + (catalogue.most + 1) * catalogue.levels + len(catalogue.after))
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=-(-(2 + catalogue.levels * size) // 4) * 4,
            hidden_size=settings.hidden_size,
            intermediate_size=settings.intermediate_size or settings.hidden_size * 11 // 4,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads // (1 if settings.heads % 2 else 2),
            attention_dropout=settings.dropout,
            max_position_embeddings=positions,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
            tie_word_embeddings=True,
        )
    )


def train_recommender(data: Data, size: int, settings: RecommenderSettings, work: Path, device: str = "cpu") -> tuple[Any, dict]:
    """Train a target; a run that was stopped goes on from `work`.

    Args:
        data: histories and the catalogue.
        size: codes a level.
        settings: width, depth and training.
        work: folder for checkpoints.
        device: where it is trained.

    Returns:
        The model in evaluation mode with the weights that rank best on validation; and its validated measures, with `step`.

    Raises:
        ValueError: for a work folder with a run of other settings.
    """
    refuse_several_processes()
    names = {name: f"--{name.replace('_', '-')}" for name in asdict(settings)}
    told = {**asdict(settings), "size": size, "items": len(data.catalogue)}
    claim_folder(work / "settings.json", told, "a training with", names, join_processes())
    torch.manual_seed(settings.seed)
    model = recommender_model(data.catalogue, size, settings).to(device)
    batch = batches(with_walks(data, settings.walks), settings.rows, settings.drop)

    def loss(example: nn.Module, turn: int) -> Tensor:
        return example(**{name: table.to(device) for name, table in batch(turn).items()}).loss

    def rank(example: nn.Module) -> dict[str, float]:
        found = best_of_plain_search(example, data.catalogue, [items[:-1] for items in data.held], 10, settings.unseen)
        return ranking_quality(found, [items[-1] for items in data.held], len(data.catalogue), (10,))

    plan = Fit(
        steps=settings.steps,
        lr=settings.lr,
        warmup=min(settings.warmup, settings.steps),
        weight_decay=settings.weight_decay,
        checkpoint_every=max(1, settings.steps // settings.validations),
        mixed_precision=settings.precision,
    )
    facts = fit_best(model, loss, plan, work, rank, last_items(data))
    fresh = recommender_model(data.catalogue, size, settings)  # the trained one may still compute in half precision
    fresh.load_state_dict({name: weight.cpu() for name, weight in model.state_dict().items()})
    return fresh.eval(), facts


def best_of_plain_search(
    model: Any, catalogue: Catalogue, histories: Sequence[Sequence[Item]], k: int, unseen: bool = False, rows: int = 100
) -> list[list[Item]]:
    """Return each history's `k` best items by plain beam search, `rows` histories at a time; without its own items where `unseen`."""
    order = sorted(range(len(histories)), key=lambda place: min(len(histories[place]), catalogue.most))
    found: list[list[Item]] = [[] for _ in histories]
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        out = recommend(model, [histories[place] for place in part], k=k, catalogue=catalogue, method="plain", unseen=unseen)
        for place, items in zip(part, out.items, strict=True):
            found[place] = items
    return found
