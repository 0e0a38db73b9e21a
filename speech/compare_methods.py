"""Every way to speed mini speech up beside plain decoding: what a call brings, what a second of sound costs, and whether it is understood.

    python speech/compare_methods.py                       # 1,000 spoken numbers a row
    python speech/compare_methods.py --utterances 16 --layers 32 --trained build/joint/joint --only heads model    # a slower target
    python speech/compare_methods.py --form sentences --utterances 64 --ears    # judged by Whisper, a voice encoder and DNSMOS as well

Counts are exact and the same on every machine. Ratios are seconds against plain decoding, utterance by utterance at batch 1, contenders
taking turns in one process, medians with quartiles; real-time factor and first sound are from there, too. Numbers of 1 to 4 digits are
said by the speakers in turn; the recogniser that ships with the mini says how many come out whole. Rows that are token-exact say the very
samples plain decoding says, and this is asserted. `--ears` needs `mmspec[quality]`, `speech/fetch_whisper.py --size base`,
`speech/fetch_voice_encoder.py` and MMSPEC_DATA; it judges each sound once, and true recordings of the same texts beside them.
"""

import argparse
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Any

import mmspec
from mmspec.bench.compare.ears import Ears, quality_table, spoken_numbers, spoken_sentences
from mmspec.bench.compare.run import Spread
from mmspec.bench.compare.speech import FOLDER, always_accept, changed_mini, speech_methods
from mmspec.loading.wheels import model_folder
from mmspec.minis import Mini
from mmspec.minis.speech_model import load_recogniser
from mmspec.speech import Speech, stream, synthesize
from mmspec.speech.sound.recogniser import word_errors
from mmspec.utils.files import write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track

FORMS = {"numbers": spoken_numbers, "long-numbers": partial(spoken_numbers, length=4), "sentences": spoken_sentences}


def judged(mini: Mini, name: str, options: dict[str, Any], asked: list[tuple[str, str]], args: argparse.Namespace) -> dict[str, Any]:
    """A row's counts over all utterances, and how they are understood."""
    hearer, told, stats, wrong, words, whole, waves = load_recogniser(FOLDER), sha256(), [], 0, 0, 0, []
    for first in track(range(0, len(asked), args.batch_size), name):
        texts, voices = zip(*asked[first : first + args.batch_size], strict=True)
        out = synthesize(mini.target, texts, voice=voices, seed=first, max_seconds=args.max_seconds, **options)
        errors = word_errors(texts, [hearer.hear(wave) for wave in out.waveforms])
        wrong, words = wrong + sum(errors), words + sum(len(text.split()) for text in texts)
        whole += sum(error == 0 for error in errors)
        stats, waves = [*stats, out.stats], [*waves, *out.waveforms]
        for wave in out.waveforms:
            told.update(wave.numpy().tobytes())
    share, tokens = whole / len(asked), sum(each.tokens for each in stats)
    drift = [each.drift for each in stats if each.drift is not None]
    return {
        "row": name,
        "exactness": stats[0].exactness,
        "tokens_per_call": tokens / sum(each.row_calls for each in stats),
        "said_right": share,
        "interval": 1.96 * (share * (1 - share) / len(asked)) ** 0.5,
        "digit_errors": wrong / words,
        "drift_a_code": sum(drift) / tokens if drift else None,
        "seconds_of_sound": sum(map(len, waves)) / mini.target.rate,
        "sound": told.hexdigest(),
        "waves": waves,
    }


def listened(mini: Mini, ears: Ears, table: list[dict[str, Any]], asked: list[tuple[str, str]]) -> dict[str, Any]:
    """What the outside models say of true recordings and of every different sound."""
    first = {row["sound"]: row for row in reversed(table)}
    sounds = ears.references(mini, asked) | {row["row"]: row["waves"] for row in table if first[row["sound"]] is row}
    return {name: ears.assess(waves, asked) for name, waves in track(sounds.items(), "ears")}


def timed(mini: Mini, rows: dict[str, dict[str, Any]], asked: list[tuple[str, str]], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Seconds at batch 1, in turns: of whole utterances, and of streams to their first piece of sound."""
    found: dict[str, list[Speech]] = {name: [] for name in rows}
    heard: dict[str, list[float]] = {name: [] for name in rows}
    names = list(rows)
    for turn, (text, voice) in enumerate(track(asked[:: max(1, len(asked) // args.timed)][: args.timed], "time")):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            out = synthesize(mini.target, [text], voice=voice, seed=turn, max_seconds=args.max_seconds, **rows[name])
            found[name].append(out)
            coming = stream(mini.target, text, voice=voice, seed=turn, max_seconds=args.max_seconds, **rows[name])
            next(coming, None)
            heard[name].append(coming.speech.first_sound[0])
    plain = [out.stats.seconds["total"] / max(1, out.stats.tokens) for out in found["plain"]]
    told = {}
    for name, outs in found.items():
        ratios = [before / (out.stats.seconds["total"] / max(1, out.stats.tokens)) for before, out in zip(plain, outs, strict=True)]
        told[name] = {
            "ratio": vars(Spread.of(ratios)),
            "real_time_factor": mean(out.real_time_factor for out in outs),
            "first_sound": mean(heard[name]),
            "underruns": sum(sum(out.underruns) for out in outs),
        }
    return told


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--utterances", type=int, default=1024)
    parser.add_argument("--timed", type=int, least=0, default=24, help="utterances timed at batch 1")
    parser.add_argument("--only", nargs="+", help="rows to run; plain is always among them")
    parser.add_argument("--trained", type=Path, help="a folder of speech/train_joint.py, whose target and heads are compared")
    parser.add_argument("--layers", type=int, help="of a deeper target, whose new layers pass their input on")
    parser.add_argument("--form", choices=FORMS, default="numbers", help="what is said")
    parser.add_argument(
        "--ears", nargs="?", type=Path, const=model_folder("whisper-base"), help="judge by outside models; a Whisper's folder"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="two rows, a few short utterances")
    args = parser.parse_args()
    if args.smoke:
        args.utterances, args.timed, args.only, args.max_seconds = 2, 1, ["model"], 0.3
    mini, asked = mmspec.load("speech"), FORMS[args.form](args.utterances)
    try:
        mini = changed_mini(mini, args.trained, args.layers)
        ears = None if args.ears is None else Ears.load(args.ears, sorted({voice for _, voice in asked}))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    rows = {name: options for name, options in speech_methods(mini).items() if args.only is None or name in ("plain", *args.only)}
    if args.only is None or "always_accept" in args.only:
        rows["always_accept"] = always_accept(mini)
    times = timed(mini, rows, asked, args)
    table = [judged(mini, name, options, asked, args) | times[name] for name, options in rows.items()]
    for row in table:
        same = row["sound"] == table[0]["sound"]
        if row["exactness"] == "token-exact" and not same:
            raise SystemExit(f"{row['row']} is token-exact, but does not say what plain decoding says")
    heard = {} if ears is None else listened(mini, ears, table, asked)
    if args.out is not None:
        kept = [{key: value for key, value in row.items() if key != "waves"} for row in table]
        quality = {name: asdict(each) for name, each in heard.items()}
        write_json(args.out, {"rows": kept, "quality": quality, "provenance": provenance(mini.target.model.device)})
    print("| row | exactness | codes a call | x plain | said right | digit errors | drift a code | real-time factor | first sound, ms |")
    print("|---" * 9 + "|")
    for row in table:
        drift, ratio = "" if row["drift_a_code"] is None else f"{row['drift_a_code']:.3f}", row["ratio"]
        cells = [row["row"], row["exactness"], f"{row['tokens_per_call']:.2f}"]
        cells += [f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})", f"{row['said_right']:.3f} ± {row['interval']:.3f}"]
        cells += [f"{row['digit_errors']:.3f}", drift, f"{row['real_time_factor']:.3f}", f"{1000 * row['first_sound']:.0f}"]
        print("| " + " | ".join(cells) + " |")
    if heard:
        print(f"\n{quality_table(heard)}")


if __name__ == "__main__":
    run_recipe(main)
