"""The card of mini vision: the scenes' figures are those that `vision/measure_captions.py` recorded, and sizes are those of the files."""

import json
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

FIGURES = "figures.json"
"""The file of a model's folder with the figures of `vision/measure_captions.py --out`."""


COLUMNS = """| method | exactness | forwards | x fewer | drift | all attributes right, % | less than plain, % | attributes right, % |
|---|---|---|---|---|---|---|---|"""
"""The head of the table of methods."""


def vision_card(folder: Path) -> str:
    """Return the card of mini vision.

    Args:
        folder: the mini's, with `fashion` and `scenes`.
    """
    scenes = folder / "scenes"
    found = json.loads((scenes / FIGURES).read_text(encoding="utf-8"))
    target, judge = found["target"], found["judge"]
    sizes = {name: f"{_parameters(scenes / name) / 1e6:.2f}" for name in ("tokenizer", "target", "captions", "classifier")}
    config = json.loads((scenes / "target" / "config.json").read_text(encoding="utf-8"))
    return CARD.format(
        sizes=sizes,
        tokenizer="{} M, {psnr:.1f} dB held out, perplexity {perplexity:.0f}".format(sizes["tokenizer"], **found["tokenizer"]),
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        nats=target["nats a code"],
        gains="; ".join(_gain(name, gain) for name, gain in target["gain"].items()),
        originals=_percent(judge["originals"]),
        rebuilt=_percent(judge["rebuilt"]),
        judged=f"{100 * judge['rebuilt'][0]:.1f}",
        held=found["held"],
        settings=found["settings"],
        rows="\n".join([COLUMNS, *(figures_row(name, row) for name, row in found["methods"].items())]),
    )


def _parameters(folder: Path) -> int:
    """Number of weights in a folder."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())


def _mean(interval: list[float]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*interval)


def _gain(name: str, gain: dict[str, list[float]]) -> str:
    return f"{_mean(gain['a picture'])} nats a picture, {gain['a code'][0]:.3f} a code {name}"


def _percent(interval: list[float]) -> str:
    return "{:.1f} ({:.1f} to {:.1f})".format(*(100 * value for value in interval))


def figures_row(name: str, row: dict[str, Any]) -> str:
    """Return a method's line of the table under `COLUMNS`."""
    drift = "" if row["drift"] is None else f"{row['drift']:.3f}"
    cells = [name, row["exactness"], f"{row['forwards']:.1f}", f"{row['fewer']:.2f}", drift]
    cells += [_percent(row[key]) for key in ("right", "less", "attributes")]
    return f"| {' | '.join(cells)} |"


CARD = """# mini vision

Two autoregressive image models that exist to show and to test faster decoding on a machine without a GPU. What they draw is small.

| | fashion (`mmspec.load("vision-fashion")`) | scenes (`mmspec.load("vision")`) |
|---|---|---|
| drawn from | one of ten classes | a caption, read by a T5 encoder of {sizes[captions]} M parameters trained along |
| pictures | 28x28, grey | 64x64, colour: one or two objects of 8 colours, 8 shapes and 2 sizes in 4 corners on white |
| codes | 14x14 of 256 | 16x16 of 284, what is left of 512 where those that look alike are merged |
| tokenizer (diffusers `VQModel`) | 0.31 M parameters, 32.7 dB held out, perplexity 176 | {tokenizer} |
| target (LlamaGen, 2-D rotary positions) | 6 layers, width 128, 1.27 M | {layers} layers, width {width}, {sizes[target]} M |
| nats a code, held out: with, without class or caption | 2.912, 2.949 | {nats[own]:.3f}, {nats[none]:.3f} |
| judge, held out, on rebuilt pictures | 0.13 M, 92.4 % of classes | {sizes[classifier]} M, all attributes right in {judged} % |
| drafters | `eagle1` | `eagle1`, and `model`, a smaller LlamaGen |

Weights are stored in float16 and run in float32. Licence of the weights: Apache-2.0. One picture in ten was learnt without its class or
caption, for classifier-free guidance: 2 is a good scale for fashion, 1 (none) for scenes. The drafters have cards of their own.

## Fashion

- Recipes: `vision/train_tokenizer.py`, `train_target.py`, `train_drafter.py`, `train_classifier.py`, each with `--set fashion`.
- Data: Fashion-MNIST (MIT), its official test pictures held out.
- How these weights were made departs from the recipes as they stand: the tokenizer comes from an earlier form of its recipe (warm-up of 200
  steps, random start of k-means, more recolouring, no loss on 4x4 means). The target took 1,800 steps under a schedule for 3,000, then 500
  under one for 2,300.

## Scenes

- Captions: "a small red star top left", or two such objects in different corners joined by "and", in reading order. Other words and
  wordings are outside what the model learnt: docs/vision.md has the grammar.
- Data: 12,000 scenes that `mmspec/minis/drawn/captioned.py` draws, every tenth held out; {held} of these 1,200
  are like no training picture, and figures are of them; no data set was used.
- Recipes, in this order:

```sh
python vision/render_scenes.py build/scenes --count 12000
python vision/train_tokenizer.py --pictures build/scenes --out build/scenes-mini --steps 2500 --rows 32 --codes 512 --width 64
python vision/train_classifier.py --pictures build/scenes --out build/scenes-mini --steps 800
python vision/train_target.py --pictures build/scenes --out build/scenes-mini --width 128 --dropout 0 --steps 1800
cp -r build/scenes-mini build/scenes-1
python vision/train_target.py --pictures build/scenes --out build/scenes-mini --begin build/scenes-1 --work build/scenes-target-2 \\
    --reading 600 --attributes 0.3 --steps 650
cp -r build/scenes-mini build/scenes-2
python vision/train_target.py --pictures build/scenes --out build/scenes-mini --begin build/scenes-2 --work build/scenes-target-3 \\
    --rows 16 --steps 850
cp -r build/scenes-mini build/scenes-3
sed -i 's/"dropout_rate": 0.1/"dropout_rate": 0.0/' build/scenes-3/captions/config.json
python vision/train_target.py --pictures build/scenes --out build/scenes-mini --begin build/scenes-3 --work build/scenes-target-4 \\
    --rows 16 --attributes 0.2 --steps 2400
```

The drafters' commands stand in their cards.

The target's first 1,800 steps taught it shapes and places, and hardly any colour; the 600 steps of reading, two minutes, taught it to read;
the last 2,400 steps brought the captions that are drawn with all attributes right from 44 to 73 % of all held-out ones, without
truncation.

A caption is worth, over the target's nats without it or with another's, in the mean over held-out pictures (95 % interval): {gains}.
The judge sees all attributes right in {originals} % of held-out originals and in {rebuilt} % of rebuilt ones.

Held-out captions that no training picture has, drawn by every method, {settings[count]} of them, at temperature 1, top-p
{settings[top_p]:g} and guidance {settings[guidance]:g}, and read by the judge. Means, and 95 % intervals by bootstrap over
pictures, those of differences from plain decoding paired. Drift is total variation a code. Distribution-exact methods draw other pictures
than plain decoding, so their differences are chance. Without top-p plain decoding gets 62.0 % (55.5 to 68.5) of these captions right, at
top-p 0.9 74.5 % (68.5 to 80.5) (2026-11-28).

{rows}

```sh
python vision/measure_captions.py mmspec/minis/vision/scenes --pictures build/scenes --count {settings[count]} --batch 50 \\
    --guidance {settings[guidance]:g} --top-p {settings[top_p]:g} \\
    --methods plain jacobi sjd scd eagle assisted assisted-jacobi lantern++ cool-sd gsd zipar \\
    --out mmspec/minis/vision/scenes/figures.json --card
```

Of the 1,200 held-out captions 632 are also captions of training pictures: the grammar is small. Drawn from all of them plain decoding got
82.0 % (77.0 to 87.5) right, `jacobi` saved 5.16 x and `assisted-jacobi` 7.88 x (2026-11-26).

Forwards, distances and seconds of both: docs/results.md.
"""
