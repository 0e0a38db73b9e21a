"""Every method on a mini vision target, with guidance: forwards, drift, distances beside plain decoding's own spread, and seconds.

    python vision/compare_methods.py --set fashion --pictures 60        (15 minutes on one busy CPU core; also --set scenes)

Forwards count one picture's share of every target call. Quality is judged with other seeds than plain decoding's
(mmspec.vision.quality.metrics). Accuracy is the share of pictures in which the judge sees the class asked for, or of scenes all
attributes of the caption, plain decoding's in its own row, the difference from it in the others.
Seconds are those of small batches, interleaved in one process with plain decoding written the usual way: a transformers DynamicCache, one
code a step, guidance in one doubled batch, torch.multinomial. They are paired: ratios of each round, their median and spread.
"""

import statistics
from pathlib import Path
from time import perf_counter

import torch

import mmspec
from mmspec.bench.compare.usual_pictures import generate_by_library
from mmspec.core.rules.lossy.cool_sd import CoolSD
from mmspec.core.rules.lossy.lantern import LanternPlus
from mmspec.minis import HOME
from mmspec.minis.images import asked_values, load_images, load_judge
from mmspec.utils.files import write_json
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track
from mmspec.vision.codes.methods import METHODS as KNOWN
from mmspec.vision.codes.methods import neighbours
from mmspec.vision.codes.registry import can_draw
from mmspec.vision.families.base import ImageModel
from mmspec.vision.quality import metrics
from mmspec.vision.quality.judging import judged_pictures

METHODS = ("jacobi", "sjd", "sjd++", "scd", "scd-gumbel", "sjd-pac", "block", "eagle", "lantern", "lantern++", "cool-sd", "vvs", "gsd")
METHODS += ("zipar", "pjd", "assisted", "assisted-jacobi")
METHODS += ("scd + cool-sd", "scd + strong cool-sd", "scd + lantern++", "scd + gsd")  # coupled windows under relaxed rules
JUDGED = ("frechet", "nll", "accuracy")
SHOWN = ("frechet", "kernel", "histogram", "horizontal", "vertical", "nll", "accuracy")


def options(name: str, model: ImageModel, window: int | str) -> dict:
    """What `generate` needs for a row of the table."""
    if name in KNOWN:
        chain = KNOWN[name].assisted and KNOWN[name].couple is None  # by a smaller model, of a length of its own
        return {"method": name, "window": window if KNOWN[name].windowed and not chain else None}
    rules = {"cool-sd": CoolSD(), "strong cool-sd": CoolSD(delta=2.0), "gsd": KNOWN["gsd"].rule(model)}
    rules["lantern++"] = LanternPlus(neighbours(model, 10))
    return {"method": "scd", "window": window, "accept": rules[name.removeprefix("scd + ")]}


def drawn(model: ImageModel, prompts: list, settings: dict, seed: int, batch: int) -> tuple:
    """Sequences [N, T], and stats summed over batches: forwards a picture, drift a code."""
    sequences, calls, drift, exactness = [], 0, 0.0, ""
    for first in range(0, len(prompts), batch):
        out = mmspec.vision.generate(model, prompts[first : first + batch], seed=seed + first, **settings)
        sequences.append(out.sequences)
        calls, drift, exactness = calls + out.stats.row_calls, drift + (out.stats.drift or 0.0), out.stats.exactness
    return torch.cat(sequences), calls / len(prompts), drift / (len(prompts) * model.raster.length), exactness


def table(rows: dict) -> list[str]:
    """The rows as a page shows them: values beside plain decoding's own 95th percentile, those outside (p <= 0.05) starred."""
    lines, plain = ["| method | forwards | x fewer | drift a code | frechet | nll | accuracy | seconds |", "|---" * 8 + "|"], rows["plain"]
    for name, row in rows.items():
        cells = [name, f"{row['forwards']:.1f}", f"{plain['forwards'] / row['forwards']:.2f}"]
        cells.append(f"{row['drift']:.3f}" if row["exactness"] == "lossy" else "")
        shown = [f"{row[k]['value']:.2f} / {row[k]['ceiling']:.2f}{'*' * (row[k]['p'] <= 0.05)}" if k in row else "" for k in JUDGED]
        cells += [*shown[:-1], f"{row['right']:.2f}" if "right" in row else shown[-1]]
        cells.append("{median:.2f} ({low:.2f}-{high:.2f})".format(**row["speed"]) if "speed" in row else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--set", choices=("fashion", "scenes"), default="fashion", help="of mini vision")
    parser.add_argument("--folder", type=Path, help="a model to measure in place of the shipped one")
    parser.add_argument("--pictures", type=int, default=60)
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--top-p", type=float, most=1, help="least probability of the codes that are kept; default all")
    parser.add_argument("--window", type=lambda text: text if text == "auto" else int(text), default=48, help="tokens a forward, or auto")
    parser.add_argument("--batch", type=int, default=30)
    parser.add_argument("--rounds", type=int, least=0, default=5, help="interleaved rounds of seconds; 0 for none")
    parser.add_argument("--timed-batch", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=METHODS, help="those whose net or smaller model is missing are left out")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="ten pictures, short windows, two methods, no seconds")
    args = parser.parse_args()
    if args.smoke:
        args.pictures, args.batch, args.window, args.methods, args.rounds = 10, 20, 8, ["scd", "scd + cool-sd"], 0
    folder = args.folder or HOME / "vision" / args.set
    parts, judge = load_images(folder), load_judge(folder)
    model, given = parts["target"], parts["examples"]
    args.methods = [name for name in args.methods if name not in KNOWN or can_draw(model, name)]
    prompts = [given[n % len(given)] for n in range(args.pictures)]
    labels, wanted = torch.arange(args.pictures) % len(given), asked_values(judge, prompts, model.labels)
    sampling = {"guidance": args.guidance, "top_p": args.top_p}
    first, forwards, _, _ = drawn(model, prompts * 2, {"method": "plain", **sampling}, 0, args.batch)
    twice = None if wanted is None else torch.cat([wanted, wanted])
    plain = judged_pictures(model, judge, prompts * 2, first, args.guidance, torch.cat([labels, labels]), twice)
    rows: dict[str, dict] = {"plain": {"forwards": forwards, "exactness": "token-exact"}}
    if plain.hits is not None:
        rows["plain"]["right"] = plain.hits.float().mean().item()
    for name in track(args.methods, args.set):
        found, calls, drift, exactness = drawn(model, prompts, options(name, model, args.window) | sampling, 10**6, args.batch)
        distances = metrics.compare(plain, judged_pictures(model, judge, prompts, found, args.guidance, labels, wanted))
        shown = {
            key: {"value": d.value, "ceiling": d.ceiling, "inside": d.inside, "p": d.p} for key, d in distances.items() if key in SHOWN
        }
        rows[name] = {"forwards": calls, "exactness": exactness, "drift": drift, "agree": metrics.agree(distances), **shown}
        print(
            name,
            f"{forwards / calls:.2f}x",
            f"{calls:.1f} forwards",
            f"drift {drift:.4f} a code",
            f"inside {rows[name]['agree']}",
            flush=True,
        )
    ratios: dict[str, list[float]] = {}
    for turn in range(args.rounds):
        some = prompts[turn : turn + args.timed_batch]
        began = perf_counter()
        generate_by_library(model, some, args.guidance, turn, args.top_p)
        base = perf_counter() - began
        for name in ("plain", *args.methods):
            began = perf_counter()
            mmspec.vision.generate(model, some, seed=turn, **sampling, **options(name, model, args.window))
            ratios.setdefault(name, []).append(base / (perf_counter() - began))
    for name, found in ratios.items():
        rows[name]["speed"] = {"median": statistics.median(found), "low": min(found), "high": max(found)}
        print(
            name, f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f}) x the usual plain decoding, batch {args.timed_batch}"
        )
    about = provenance(torch.device("cpu"))
    print(machine(about), about["date"], "seconds: usual plain decoding over the method, batch", args.timed_batch)
    if args.out:
        write_json(args.out, {"rows": rows, "settings": {k: str(v) for k, v in vars(args).items()}, "provenance": about})
    print("\n".join(table(rows)))


if __name__ == "__main__":
    run_recipe(main)
