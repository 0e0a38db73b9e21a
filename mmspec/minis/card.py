"""Writing a mini: weights as bytes, tokenizer, example prompts and a card, all to temporary names first."""

import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmspec.minis.weights import save_llama
from mmspec.utils.packing import packed, unpacked


def as_stored(model: Any) -> Any:
    """Return `model` with its weights rounded to their stored form, so that measurements hold for the shipped files."""
    model.load_state_dict(unpacked(packed(model.state_dict())))
    return model


def write_text_mini(folder: Path, target: Any, drafter: Any, tokenizer: Any, *, prompts: list[str], card: str) -> None:
    """Write mini text to `folder`, atomically."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tokenizer.save_pretrained(temporary)
    table = temporary / "tokenizer.json"
    table.write_text(json.dumps(json.loads(table.read_text(encoding="utf-8")), ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    for name, model in (("target", target), ("drafter", drafter)):
        save_llama(model, temporary / name)
    (temporary / "prompts.txt").write_text("\n---\n".join(prompts), encoding="utf-8")
    (temporary / "card.md").write_text(card, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)


def text_card(steps: int, drafter_steps: int, facts: dict[str, float], prompts: int) -> str:
    """Return the card of mini text."""
    rows = "\n".join(f"| {name} | {value:.3f} |" for name, value in facts.items())
    return CARD.format(steps=steps, drafter_steps=drafter_steps, rows=rows, prompts=prompts)


CARD = """# mini text

A Llama-type target (16 layers, width 192, 6.9 M parameters) and a drafter (1 layer, width 192, 0.8 M) that share a byte-level BPE
tokenizer of 2,048 tokens. They write short worded sums, simple stories and plays in English. They exist to show and to test
speculative decoding on a machine without a GPU; what they say is not to be relied on.

- Recipe: `python text/train_mini.py` ({steps} target steps of 16 windows of 320 tokens, {drafter_steps} drafter steps; seeds fixed).
- Data: GSM8K train split (MIT); African Storybook, English stories (CC BY, each story's author as named there);
  tinyshakespeare (public domain). Every twentieth document was held out; the example prompts come from those.
- The drafter learnt the target's distribution (KL) on the corpus and on text that the target wrote itself, half greedy, half sampled.
- Weights: matrices are stored as bytes with a scale a row, everything else in float16; all run in float32. The figures below are of
  these weights. Licence of the weights: Apache-2.0.

| figure, on {prompts} held-out prompts | value |
|---|---|
{rows}
"""


def drafter_card(args: Any, command: str, aim: Any, net: Any, held: int, levels: list[tuple[float, float]]) -> str:
    """Return the card of a drafter trained by `text/train_drafter.py` with `args`; `command` gives the same weights again."""
    source = args.prompts.name if args.prompts else "openings of the mini's training documents (see its card)"
    options = {**args.options, **({"values": args.vocabulary} if args.vocabulary else {})}
    rows = "\n".join(f"| {depth} | {taken:.3f} | {agree:.3f} |" for depth, (taken, agree) in enumerate(levels, 1))
    return DRAFTER_CARD.format(
        kind=args.kind,
        target="mini text" if args.model == "mini" else Path(args.model).name,
        parameters=f"{sum(weight.numel() for weight in net.parameters()) / 1e6:.2f}",
        options=f" with {options}" if options else "",
        command=command,
        versions=_versions(),
        steps=args.steps,
        rows_a_step=args.rows,
        lr=args.lr,
        depth=aim.depth,
        distributions=loss_text(aim.distributions),
        states=f", {aim.states:g} x SmoothL1 on states" if aim.states else "",
        windows=args.windows,
        length=args.opening + args.new,
        temperatures=", ".join(f"{temperature:g}" for temperature in args.temperature),
        source=source,
        held=held,
        rows=rows,
    )


def picture_drafter_card(args: Any, command: str, parameters: int, held: int, levels: list[tuple[float, float]]) -> str:
    """Return the card of a drafter trained by `vision/train_drafter.py` with `args`; `command` gives the same weights again."""
    table = "\n".join(f"| {depth} | {taken:.3f} | {agree:.3f} |" for depth, (taken, agree) in enumerate(levels, 1))
    facts = {name: getattr(args, name) for name in ("name", "kind", "drawn", "guidance", "temperature", "steps", "rows", "lr", "depth")}
    facts["cut"] = "".join(f", {name} {value}" for name in ("top_k", "top_p") if (value := getattr(args, name)) is not None)
    facts["apart"] = "; every third step without class or\n  caption" if args.guidance != 1 else ""
    facts["terms"] = "Apache-2.0" if args.model is None else "they follow their target's terms"
    facts |= {"command": command, "versions": _versions(), "parameters": parameters / 1e6, "held": held, "table": table}
    facts["loss"] = "kl + 0.1 x SmoothL1 on states" if args.kind == "eagle1" else "kl"
    return PICTURE_DRAFTER_CARD.format(**facts)


def latent_drafter_card(args: Any, command: str, parameters: int, facts: Mapping[str, float]) -> str:
    """Return the card of a drafter of continuous tokens trained by `vision/train_continuous.py`; `command` gives its weights again."""
    kinds = {"model": "A smaller model of the same tokens", "state": "One layer that reads the target's last hidden states"}
    head = ", with a head of its own" if args.own_head else ", with the target's head" if args.kind == "state" else ""
    table = "\n".join(f"| {name} | {value:.3f} |" for name, value in facts.items())
    own = {name: getattr(args, name) for name in ("name", "target", "steps", "rows", "lr")}
    return LATENT_DRAFTER_CARD.format(
        kind=kinds[args.kind] + head, parameters=parameters / 1e6, table=table, command=command, versions=_versions(), **own
    )


def loss_text(losses: Mapping[str, float]) -> str:
    """Return a mixture of losses by name as text, such as "1 x kl + 0.5 x tv"."""
    return " + ".join(f"{weight:g} x {name}" for name, weight in losses.items()) or "none"


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))


DRAFTER_CARD = """# {kind} drafter for {target}

{parameters} M parameters{options}. It only proposes: what is said is the target's, whatever the drafter.

- Recipe: {steps} steps of {rows_a_step} windows, peak rate {lr:g}, {depth} levels unrolled; loss {distributions}{states}. With {versions}
  the command below gives these weights again.
- Data: {windows} windows of up to {length} tokens that the target wrote at temperatures {temperatures}, from {source}.
- Weights made for mini text are under Apache-2.0; others follow their target's terms.

Acceptance on {held} windows held out, token by token on the target's own text: the chance that the token rule accepts, and how often
the likeliest tokens agree.

| draft token | sampled | greedy |
|---|---|---|
{rows}

```sh
{command}
```
"""


PICTURE_DRAFTER_CARD = """# {kind} drafter for the {name} target

{parameters:.2f} M parameters. It only proposes: under an exact rule the picture's distribution is the target's, whatever the drafter.

- Recipe: {steps} steps of {rows} pictures, peak rate {lr:g}, {depth} levels unrolled; loss {loss}{apart}.
  With {versions} the command below gives these weights again.
- Data: {drawn} pictures that the target drew itself at temperature {temperature:g} and guidance {guidance:g}{cut}.
- Weights: {terms}.

Acceptance on {held} pictures held out, code by code on the target's own pictures and without guidance: the chance that the token rule
accepts, and how often the likeliest codes agree.

| draft token | sampled | greedy |
|---|---|---|
{table}

```sh
{command}
```
"""


LATENT_DRAFTER_CARD = """# drafter {name} for the {target} target of continuous tokens

{kind}: {parameters:.2f} M parameters. It only proposes: under an exact rule the picture's distribution is the target's, whatever the
drafter.

- Recipe: {steps} steps of {rows} pictures, peak rate {lr:g}. With {versions} the command below gives these weights again.
- Data: Fashion-MNIST (MIT) and pictures that the target drew, in turns.
- Weights: Apache-2.0.

Measured on pictures that the target drew:

| | |
|---|---|
{table}

```sh
{command}
```
"""
