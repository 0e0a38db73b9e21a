"""VADUSA's joint training beside its controls: codes a call and digit errors at tau 1, 2 and 3, with 95 % bootstrap intervals.

    python speech/train_joint.py joint && python speech/train_joint.py frozen && python speech/train_joint.py target
    python speech/train_joint.py frozen --target build/joint/target/target --out build/joint/target
    python speech/compare_joint.py build/joint
    python speech/compare_joint.py build/joint --utterances 64 --ears    # judged by Whisper, a voice encoder and DNSMOS as well

`frozen` is the target as it ships with heads trained on it; `target` the target after as many steps more by itself, with heads trained
on it; `joint` the target trained along with its heads. At tau 1 each says what its target says without heads, in fewer calls.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mmspec
from mmspec.bench.compare.ears import Ears, quality_table, spoken_numbers
from mmspec.bench.compare.speech import FOLDER
from mmspec.core.rules.lossy.tolerance import Tolerance
from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.loading.wheels import model_folder
from mmspec.minis.speech_model import load_recogniser, speaker
from mmspec.speech import synthesize
from mmspec.speech.quality.assess import BootstrapMean
from mmspec.speech.sound.recogniser import word_errors
from mmspec.utils.files import write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track

WAYS = ("frozen", "target", "joint")


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument("trained", type=Path, nargs="?", default=Path("build/joint"), help="what speech/train_joint.py wrote")
    parser.add_argument("--utterances", type=int, default=512, help="spoken numbers of one to four digits")
    parser.add_argument("--tree", type=int, nargs="+", default=[3, 2, 1], help="children by level of the draft tree")
    parser.add_argument("--taus", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--ears", nargs="?", type=Path, const=model_folder("whisper-base"), help="judge by outside models; a Whisper's folder"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="the shipped target and heads in place of all three, a few short utterances")
    return parser.parse_args()


def said(target: Any, options: dict[str, Any], asked: list[tuple[str, str]], args: argparse.Namespace, name: str) -> dict[str, Any]:
    """What one row says of all utterances, in how many calls, and what the mini's recogniser hears."""
    hearer, calls, tokens, errors, waves = load_recogniser(FOLDER), 0, 0, [], []
    for first in track(range(0, len(asked), args.batch_size), name):
        texts, voices = zip(*asked[first : first + args.batch_size], strict=True)
        out = synthesize(target, texts, voice=voices, seed=first, max_seconds=args.max_seconds, **options)
        calls, tokens, waves = calls + out.stats.row_calls, tokens + out.stats.tokens, [*waves, *out.waveforms]
        errors += word_errors(texts, [hearer.hear(wave) for wave in out.waveforms])
    words = [len(text.split()) for text, _ in asked]
    return {
        "row": name,
        "codes_a_call": tokens / calls,
        "said_right": BootstrapMean.of([float(error == 0) for error in errors]),
        "digit_errors": BootstrapMean.of(errors, words),
        "waves": waves,
    }


def main() -> None:
    args = parsed()
    if args.smoke:
        args.utterances, args.taus, args.max_seconds = 2, [1], 0.3
    asked = spoken_numbers(args.utterances)
    ears = None if args.ears is None else Ears.load(args.ears, sorted({voice for _, voice in asked}))
    mini, table, heard = mmspec.load("speech"), [], {}
    for way in WAYS:
        folder, own = args.trained / way, FOLDER / "target" if args.smoke or way == "frozen" else args.trained / way / "target"
        target = speaker(FOLDER, str(own.resolve()))
        heads = mini.drafters["vadusa"] if args.smoke else load_drafter(folder / "heads", target.model)
        chosen = {"drafter": heads, "tree": tuple(args.tree), "draft_length": len(args.tree)}
        table += [said(target, chosen | {"accept": Tolerance(tau)}, asked, args, f"{way}, tau {tau}") for tau in args.taus]
    if ears is not None:
        heard = {row["row"]: ears.assess(row["waves"], asked) for row in track(table, "ears")}
    if args.out is not None:
        kept = [
            {key: vars(value) if isinstance(value, BootstrapMean) else value for key, value in row.items() if key != "waves"}
            for row in table
        ]
        quality = {name: asdict(each) for name, each in heard.items()}
        write_json(args.out, {"rows": kept, "quality": quality, "provenance": provenance(mini.target.model.device)})
    print("| row | codes a call | heard correctly | digit errors |\n|---|---|---|---|")
    for row in table:
        print(f"| {row['row']} | {row['codes_a_call']:.2f} | {row['said_right']} | {row['digit_errors']} |")
    if heard:
        print(f"\n{quality_table(heard)}")


if __name__ == "__main__":
    run_recipe(main)
