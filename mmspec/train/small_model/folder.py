"""Folders of small models: what a run is called, its figures as it goes, and the model with tokenizer and card as transformers reads it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mmspec.drafters.block.pard import KEY
from mmspec.train.parallel import join_processes
from mmspec.train.states.identity import claim_folder
from mmspec.utils.files import whole, whole_folder, write_json

FACTS = "distillation.json"
"""File of a distilled model's folder that says how it was made. Folders without it are never replaced."""


def check_replaceable(folder: Path) -> None:
    """Check that a folder may be written.

    Raises:
        ValueError: if it holds something other than a distilled model.
    """
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / FACTS).is_file())):
        raise ValueError(f"{folder} exists and holds no distilled model: it would be replaced; give a new folder")


def claim_work(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note the settings of a run in its work folder, or check that they are those of the run to be resumed.

    Args:
        folder: where checkpoints and text are kept.
        settings: everything that the run depends on, ready for JSON.

    Raises:
        ValueError: for a folder with a run of other settings, naming the first that differs.
    """
    flags = {key: f"--{key.replace('_', '-')}" for key in settings}
    claim_folder(folder / "settings.json", settings, "a run with", flags, join_processes())


def note_acceptance(path: Path, step: int, acceptance: Sequence[tuple[float, float]]) -> str:
    """Add the held-out acceptance at a step to a file of JSON lines, and return it as text.

    Args:
        path: the file.
        step: number of the step.
        acceptance: (acceptance, greedy agreement) for the draft tokens of a block one by one; of an ordinary model one pair.
    """
    taken, agreed = ([pair[part] for pair in acceptance] for part in (0, 1))
    block = {"by_token": taken, "agreement_by_token": agreed} if len(taken) > 1 else {}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "acceptance": taken[0], "agreement": agreed[0], **block}) + "\n")
    sampled, greedy = (" ".join(f"{each:.3f}" for each in part) for part in (taken, agreed))
    return f"step {step}: held-out acceptance {sampled}, greedy agreement {greedy}"


def noted_acceptance(path: Path) -> list[dict[str, float]]:
    """Return the lines of such a file in the order of steps; of a step noted twice the last."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return sorted({line["step"]: line for line in lines}.values(), key=lambda line: line["step"])


def save_small_model(
    model: Any,
    tokenizer: Any,
    folder: Path,
    settings: Mapping[str, Any],
    noted: Sequence[Mapping[str, Any]],
    mask_id: int | None = None,
) -> None:
    """Write a model as an ordinary transformers folder with tokenizer, card and `FACTS`, completely or not at all.

    Args:
        model: the small model.
        tokenizer: the target's.
        folder: the folder to write. One that holds a distilled model is replaced.
        settings: of the run, ready for JSON; "model" and "command" stand on the card.
        noted: what `noted_acceptance` returned.
        mask_id: the mask token of a model that drafts a block, which its config will name.

    Raises:
        ValueError: for weights that are not finite, and a folder that holds something else; nothing is written then.
    """
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ValueError(f"{name} of the small model holds NaN or infinity: it is not saved; train with a lower rate")
    check_replaceable(folder)
    if mask_id is not None:
        setattr(model.config, KEY, mask_id)
    with whole_folder(folder) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        write_json(temporary / FACTS, {"settings": dict(settings), "acceptance": list(noted)})
        with whole(temporary / "README.md") as file:
            file.write(small_model_card(model, settings, noted))


def small_model_card(model: Any, settings: Mapping[str, Any], noted: Sequence[Mapping[str, float]]) -> str:
    """Return the card of a distilled model."""
    config = model.config.get_text_config(decoder=True)
    return _CARD.format(
        target=Path(settings["model"]).name,
        kind=type(model).__name__,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        parameters=sum(weight.numel() for weight in model.parameters()) / 1e6,
        command=settings["command"],
        block=_block(model, noted),
        rows="\n".join(f"| {line['step']:.0f} | {line['acceptance']:.3f} | {line['agreement']:.3f} |" for line in noted),
    )


def _block(model: Any, noted: Sequence[Mapping[str, Any]]) -> str:
    """The lines of a card on drafting a block, empty for an ordinary model."""
    found = [line["by_token"] for line in noted if "by_token" in line]
    if not found:
        return ""
    last = " ".join(f"{each:.3f}" for each in found[-1])
    token = getattr(model.config, KEY, None)
    return f"\n- Drafts a block in one forward by mask token {token} (PARD). Acceptance by draft token, at the last step: {last}"


_CARD = """# Drafter for {target}

A {kind} of {layers} layers, width {width} and {parameters:.1f} M parameters with the tokenizer of its target, distilled from it.
As a drafter (`mmspec text --drafter`, `assistant_model=` of transformers, a draft model of vLLM) it only proposes: under exact rules the
output is the target's. Its own text is not to be relied on. The weights follow their target's terms.

- Recipe: `{command}`{block}

Acceptance on windows of the target's own text that were held out: the chance that the token rule accepts a token (1 - TV), and how often
the likeliest tokens agree.

| step | sampled | greedy |
|---|---|---|
{rows}
"""
