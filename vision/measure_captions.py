"""Do pictures show what their captions say? Every method, judged by attributes, with intervals; and what a caption is worth in nats.

    python vision/measure_captions.py MODEL --pictures FOLDER --count 200        (MODEL: what vision/train_target.py wrote)

Held-out captions of FOLDER (captions.jsonl with attributes) are drawn by each method, all with the same seeds, and read by MODEL's
classifier (vision/train_classifier.py); captions that a training picture has, too, are left out. A picture is right when every attribute
is. Intervals are 95 %, by bootstrap over pictures; those
of differences from plain decoding are paired. The caption's gain is the target's -log p of held-out pictures given another picture's
caption, or none, less that given their own, a code and a picture. A caption of a few bits is spread over all codes of a picture, so a
code's share of it is small. --out records these figures, the tokenizer's and the judge's; of mini vision --card writes its card from them.
"""

from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec.minis.images import load_images, load_judge
from mmspec.minis.picture_sets.sets import LabelledPictures, code_table, labelled_pictures
from mmspec.minis.picture_sets.vision_card import COLUMNS, FIGURES, figures_row, vision_card
from mmspec.train.held_out import apart
from mmspec.utils.files import whole, write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.codes.registry import can_draw
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.quality.classifier import Classifier, classify, seen_values

METHODS = ("plain", "jacobi", "sjd", "scd", "eagle", "assisted", "assisted-jacobi", "lantern++", "cool-sd", "gsd", "zipar", "pjd")


@torch.no_grad()
def nats(model: LlamaGenPictures, codes: torch.Tensor, captions: list[str], told: bool = True) -> torch.Tensor:
    """-log p of each picture [N], nats, given captions or none."""
    found = []
    for first in range(0, len(codes), 50):
        some = slice(first, first + 50)
        prompt = model.encode(captions[some], guided=True)
        half = slice(0, len(codes[some])) if told else slice(len(codes[some]), None)
        log_p = model.model.write(prompt.embeds[half], codes[some], prompt.mask[half]).log_softmax(-1)
        found.append(-log_p.gather(-1, codes[some][..., None])[..., 0].sum(1))
    return torch.cat(found)


def interval(values: torch.Tensor, rounds: int = 2000) -> tuple[float, float, float]:
    """Mean of [N] and its 95 % interval, by bootstrap."""
    pick = torch.randint(len(values), (rounds, len(values)), generator=torch.Generator().manual_seed(0))
    means = values.double()[pick].mean(1)
    return values.double().mean().item(), means.quantile(0.025).item(), means.quantile(0.975).item()


def wanted_values(judge: Classifier, data: LabelledPictures) -> torch.Tensor:
    """Held-out attributes [N, A] as the judge numbers them. SystemExit where it knows others."""
    if not data.values or judge.values != data.values:
        raise SystemExit(f"the judge sees {', '.join(judge.values)} and the folder has {', '.join(data.values) or 'no attributes'}")
    return torch.tensor(data.held.attributes)


def model_figures(model: LlamaGenPictures, vq: Any, judge: Classifier, data: LabelledPictures, wanted: torch.Tensor) -> dict[str, Any]:
    """Figures of the tokenizer, the judge and the target on held-out pictures, of which the judge should see `wanted` [N, A]."""
    codes, given = code_table(vq, data.held)[:, 0].long(), [texts[0] for texts in data.held.conditions]
    own, other, none = nats(model, codes, given), nats(model, codes, given[1:] + given[:1]), nats(model, codes, given, told=False)
    originals = data.held.floats(slice(None))
    rebuilt = tokens.codes_to_pixels(vq, codes.view(-1, *[model.raster.width] * 2))
    psnr = -10 * ((rebuilt - originals) / 2).square().flatten(1).mean(1).clamp(min=1e-10).log10()
    read = {name: seen_values(judge, classify(judge, some)[0]) for name, some in (("originals", originals), ("rebuilt", rebuilt))}
    gains = (("over another picture's caption", other - own), ("over no caption", none - own))
    length = codes.shape[1]
    return {
        "held": len(codes),
        "tokenizer": {"psnr": psnr.mean().item(), "perplexity": tokens.perplexity(codes, len(tokens.codebook(vq)))},
        "judge": {name: interval((seen == wanted).all(1).float()) for name, seen in read.items()},
        "target": {
            "nats a code": {name: each.mean().item() / length for name, each in (("own", own), ("none", none))},
            "gain": {name: {"a picture": interval(gain), "a code": interval(gain / length)} for name, gain in gains},
        },
    }


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=Path("build/measured"))
    parser.add_argument("--pictures", type=Path, help="the folder that the model was trained on")
    parser.add_argument("--count", type=int, default=200, help="captions drawn")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="those whose net or smaller model is missing are left out")
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--top-p", type=float, most=1, help="least probability of the codes that are kept; default all")
    parser.add_argument("--window", type=int, help="tokens a forward; default each method's own")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--work", type=Path, help="where pixels are kept; default build/pictures-FOLDER")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--card", action="store_true", help="of mini vision: write its card, from the figures in MODEL/figures.json")
    parser.add_argument("--smoke", action="store_true", help="two pictures by two methods, of a model and scenes made here")
    args = parser.parse_args()
    if args.smoke and args.pictures is None:
        from mmspec.minis.picture_sets.tiny import tiny_scenes_model

        args.pictures, args.model, args.methods, args.count = *tiny_scenes_model(args.model), ("plain", "scd"), 2
    if args.card and args.out != args.model / FIGURES:
        parser.error(f"--card is written from {args.model / FIGURES}: give that as --out")
    if args.pictures is None:
        parser.error("--pictures is missing: give the folder that the model was trained on")
    parts, judge = load_images(args.model), load_judge(args.model)
    model, vq = parts["target"], tokens.load_tokenizer(args.model / "tokenizer")
    data = labelled_pictures(args.pictures, size=judge.config["size"], work=args.work)
    every, given = wanted_values(judge, data), [texts[0] for texts in data.held.conditions]
    unseen = list(apart([text for texts in data.train.conditions for text in texts], given, "captions").held)[: args.count]
    wanted, args.count = every[unseen], len(unseen)
    facts = model_figures(model, vq, judge, data, every) | {"methods": {}}
    facts["settings"] = {"count": args.count, "guidance": args.guidance, "top_p": args.top_p, "window": args.window}
    for name, gain in facts["target"]["gain"].items():
        mean, low, high = gain["a picture"]
        print(f"caption's gain {name}: {mean:.2f} ({low:.2f} to {high:.2f}) nats a picture, {gain['a code'][0]:.4f} a code")
    methods = ["plain", *(name for name in args.methods if name != "plain" and can_draw(model, name))]
    captions, plain = [given[number] for number in unseen], torch.zeros(0)
    print(COLUMNS)
    for name in track(methods, "methods", disable=len(methods) < 4):
        calls, drift, drawn = 0, [], []
        for first in range(0, len(captions), args.batch):
            some = captions[first : first + args.batch]
            options = {} if args.window is None or name in ("plain", "zipar", "pjd") else {"window": args.window}
            out = mmspec.vision.generate(model, some, method=name, guidance=args.guidance, top_p=args.top_p, seed=first, **options)
            drawn.append(out.tokens)
            calls, drift = calls + out.stats.row_calls, drift + ([] if out.stats.drift is None else [out.stats.drift])
        right = seen_values(judge, classify(judge, tokens.codes_to_pixels(vq, torch.cat(drawn)))[0]) == wanted
        every_one = right.all(1).float()
        plain = every_one if name == "plain" else plain
        row: dict[str, Any] = {"exactness": out.stats.exactness, "forwards": calls / len(captions)}
        row["drift"] = sum(drift) / (len(captions) * model.raster.length) if drift else None  # of those that are metered
        row |= {"right": interval(every_one), "less": interval(plain - every_one), "attributes": interval(right.float().mean(1))}
        row["fewer"] = facts["methods"].get("plain", row)["forwards"] / row["forwards"]
        facts["methods"][name] = row
        print(figures_row(name, row), flush=True)
    if args.out:
        write_json(args.out, facts | {"provenance": provenance(torch.device("cpu"))})
    if args.card:
        with whole(args.model.parent / "card.md") as file:
            file.write(vision_card(args.model.parent))


if __name__ == "__main__":
    run_recipe(main)
