"""Every way to speed mini speech up beside plain decoding: what a call brings, what a second of sound costs, and whether it is understood.

    python speech/compare_methods.py                       # 1,000 spoken numbers a row
    python speech/compare_methods.py --utterances 200 --only model tree

Counts are exact and the same on every machine. Ratios are seconds against plain decoding, utterance by utterance at batch 1, contenders
taking turns in one process, medians with quartiles; real-time factor and first sound are from there, too. Numbers of 1 to 4 digits are
said by the speakers in turn; the recogniser that ships with the mini says how many come out whole. Rows that are token-exact say the very
samples plain decoding says, and this is asserted.
"""

import argparse
import random
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Any

from rich.progress import track

import mmspec
from mmspec.bench.compare.run import Spread
from mmspec.bench.compare.speech import FOLDER, always_accept, speech_methods
from mmspec.minis import Mini
from mmspec.minis import speech_data as spoken
from mmspec.minis.speech_model import load_recogniser
from mmspec.speech import Speech, stream, synthesize
from mmspec.speech.sound.recogniser import word_errors
from mmspec.utils.files import write_json
from mmspec.utils.provenance import provenance


def numbers(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Texts and voices, as long as one another in every stretch of 32: batches then end together."""
    pick, voices = random.Random(seed), spoken.SPEAKERS
    digits = [[pick.randrange(10) for _ in range(1 + index // 32 % 4)] for index in range(count)]
    return [(spoken.words(each), voices[index % len(voices)]) for index, each in enumerate(digits)]


def judged(mini: Mini, name: str, options: dict[str, Any], asked: list[tuple[str, str]], args: argparse.Namespace) -> dict[str, Any]:
    """A row's counts over all utterances, and how they are understood."""
    hearer, told, stats, wrong, words, whole, seconds = load_recogniser(FOLDER), sha256(), [], 0, 0, 0, 0.0
    for first in track(range(0, len(asked), args.batch_size), name):
        texts, voices = zip(*asked[first : first + args.batch_size], strict=True)
        out = synthesize(mini.target, texts, voice=voices, seed=first, max_seconds=args.max_seconds, **options)
        errors = word_errors(texts, [hearer.hear(wave) for wave in out.waveforms])
        wrong, words = wrong + sum(errors), words + sum(len(text.split()) for text in texts)
        whole += sum(error == 0 for error in errors)
        stats, seconds = [*stats, out.stats], seconds + sum(map(len, out.waveforms)) / out.sample_rate
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
        "seconds_of_sound": seconds,
        "sound": told.hexdigest(),
    }


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=1024)
    parser.add_argument("--timed", type=int, default=24, help="utterances timed at batch 1")
    parser.add_argument("--only", nargs="+", help="rows to run; plain is always among them")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="two rows, a few short utterances")
    args = parser.parse_args()
    if args.smoke:
        args.utterances, args.timed, args.only, args.max_seconds = 4, 2, ["model"], 0.5
    mini, asked = mmspec.load("speech"), numbers(args.utterances)
    rows = {name: options for name, options in speech_methods(mini).items() if args.only is None or name in ("plain", *args.only)}
    if args.only is None or "always_accept" in args.only:
        rows["always_accept"] = always_accept(mini)
    times = timed(mini, rows, asked, args)
    table = [judged(mini, name, options, asked, args) | times[name] for name, options in rows.items()]
    for row in table:
        same = row["sound"] == table[0]["sound"]
        if row["exactness"] == "token-exact" and not same:
            raise SystemExit(f"{row['row']} is token-exact, but does not say what plain decoding says")
    if args.out is not None:
        write_json(args.out, {"rows": table, "provenance": provenance(mini.target.model.device)})
    print("| row | exactness | codes a call | x plain | said right | digit errors | drift a code | real-time factor | first sound, ms |")
    print("|---" * 9 + "|")
    for row in table:
        drift, ratio = "" if row["drift_a_code"] is None else f"{row['drift_a_code']:.3f}", row["ratio"]
        cells = [row["row"], row["exactness"], f"{row['tokens_per_call']:.2f}"]
        cells += [f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})", f"{row['said_right']:.3f} ± {row['interval']:.3f}"]
        cells += [f"{row['digit_errors']:.3f}", drift, f"{row['real_time_factor']:.3f}", f"{1000 * row['first_sound']:.0f}"]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
