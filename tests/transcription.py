"""Whisper's transcription with a drafter beside transformers' own, on real recordings: equality, tokens a call, word error rate, seconds.

    python -m tests.transcription                                      # the two Whispers that fetch_whisper.py keeps
    python -m tests.transcription --batch 1 4 --lengths 5 12 --timestamps segment word --rounds 5
    python -m tests.transcription --kinds long --fallback --condition

transformers' `generate` runs on every recording alone for the texts and times that are compared, and on the batch for the seconds.
Contenders take turns; ratios are medians with quartiles over batches and rounds. `long` are three recordings of more than 60 seconds: all
sentences of LJ Speech in a row, in three orders.
"""

import argparse
from collections.abc import Sequence
from time import perf_counter

import torch
from rich.progress import track

import mmspec
from mmspec.bench.compare.run import Spread
from mmspec.bench.suites.recordings import Recording, compared_words, recorded_kinds, recordings_of
from mmspec.loading.hearing import load_transcriber
from mmspec.loading.text import Pair
from mmspec.loading.wheels import model_folder
from mmspec.speech.recognition.transcript import Transcript, Transcription
from mmspec.speech.recognition.whisper import FALLBACK, attention_restored, features_of
from mmspec.speech.sound.recogniser import word_errors
from mmspec.utils.provenance import provenance

RATE = 16_000
Times = list[tuple[float, float, list[int], list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(model_folder("whisper-base")))
    parser.add_argument("--drafter", default=str(model_folder("whisper-tiny.en")))
    parser.add_argument("--kinds", nargs="+", default=["ljspeech", "joined", "digits", "long"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--lengths", nargs="+", default=["5", "12", "auto"], help="draft tokens a round")
    parser.add_argument("--timestamps", nargs="+", default=["none", "word"], choices=["none", "segment", "word"])
    parser.add_argument("--language", default="en", help="of the recordings; auto detects it")
    parser.add_argument("--fallback", action="store_true")
    parser.add_argument("--condition", action="store_true")
    parser.add_argument("--limit", type=int, default=8, help="recordings of a kind")
    parser.add_argument("--rounds", type=int, default=1, help="how often every batch is timed")
    args = parser.parse_args()
    pair = load_transcriber(args.model, args.drafter)
    print(f"{pair.name} drafted by {args.drafter}, {provenance(pair.target.device)['device']}, {torch.get_num_threads()} threads\n")
    print("| recordings | times | batch | run by | same text and times | tokens a call | words wrong, % | x `generate` |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in args.kinds:
        found = recordings(kind)[: args.limit]
        for times in (None if each == "none" else each for each in args.timestamps):
            own = [by_generate(pair, args, [each], times) for each in track(found, f"{kind} alone")]
            for size in args.batch:
                table(pair, args, found, own, times, size)


def recordings(kind: str) -> list[Recording]:
    """Return the recordings of a kind of the whisper suite, or `long` ones."""
    if kind != "long":
        return recordings_of(recorded_kinds(kind)[0], RATE)
    clips = recordings_of("ljspeech", RATE)
    orders = [clips[first:] + clips[:first] for first in (0, 3, 6)]
    rows = [[*order, *order[:2]] for order in orders]
    return [
        Recording("long", f"long/{place}", " ".join(each.text for each in row), torch.cat([each.wave for each in row]))
        for place, row in enumerate(rows)
    ]


def by_generate(pair: Pair, args: argparse.Namespace, clips: Sequence[Recording], times: str | None) -> Times:
    """Return start, end, tokens and their times of every segment, of all recordings in a row, by transformers' own `generate`."""
    features, mask = features_of(pair.processor.feature_extractor, [clip.wave for clip in clips])
    long = len(clips[0].wave) > pair.processor.feature_extractor.n_samples
    asked = {"return_timestamps": bool(long or times), "return_token_timestamps": times == "word"}
    asked |= {"language": args.language, "task": "transcribe"} if args.language != "auto" else {"task": "transcribe"}
    asked |= FALLBACK if args.fallback else {"temperature": 0.0}
    asked |= {"condition_on_prev_tokens": True} if args.condition and long else {}
    with attention_restored(pair.target):
        found = pair.target.generate(features, attention_mask=mask, return_segments=True, **asked)
    parts = [part for segments in found["segments"] for part in segments]
    ends = [part["token_timestamps"].tolist() if times == "word" else [] for part in parts]
    return [(float(each["start"]), float(each["end"]), each["tokens"].tolist(), end) for each, end in zip(parts, ends, strict=True)]


def by_mmspec(pair: Pair, args: argparse.Namespace, clips: Sequence[Recording], times: str | None, length: str | None) -> Transcription:
    """Return the transcripts of one batch; without a drafter for no length."""
    return mmspec.speech.transcribe(
        pair.target,
        pair.processor,
        [clip.wave for clip in clips],
        None if length is None else pair.drafter,
        language=None if args.language == "auto" else args.language,
        timestamps=times,
        fallback=args.fallback,
        condition=args.condition,
        batch_size=len(clips),
        draft_length="auto" if length in (None, "auto") else int(length),
    )


def table(pair: Pair, args: argparse.Namespace, clips: Sequence[Recording], own: Sequence[Times], times: str | None, size: int) -> None:
    """Print the rows of one kind, timestamps and batch size."""
    ways = [None, *args.lengths]
    same, wrong = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    tokens, calls = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    ratios: dict[str | None, list[float]] = {way: [] for way in ways}
    starts = range(0, len(clips), size)
    for turn in range(args.rounds):
        for first in track(starts, f"{clips[0].kind}, batch {size}"):
            batch, expected = clips[first : first + size], own[first : first + size]
            began = perf_counter()
            by_generate(pair, args, batch, times)
            plain = perf_counter() - began
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                began = perf_counter()
                out = by_mmspec(pair, args, batch, times, way)
                ratios[way].append(plain / (perf_counter() - began))
                if turn:
                    continue
                tokens[way] += out.stats.tokens
                calls[way] += out.stats.row_calls
                same[way] += sum(equal(got, row) for got, row in zip(out.transcripts, expected, strict=True))
                wrong[way] += sum(word_errors([compared_words(each.text) for each in batch], [compared_words(text) for text in out.texts]))
    words = sum(len(compared_words(each.text).split()) for each in clips)
    for way in ways:
        name = "mmspec, no drafter" if way is None else f"mmspec, drafts of {way}"
        spread = Spread.of(ratios[way])
        cells = [clips[0].kind, times or "none", str(size), name, f"{same[way]} of {len(clips)}", f"{tokens[way] / calls[way]:.2f}"]
        print(
            f"| {' | '.join(cells)} | {100 * wrong[way] / words:.1f} | {spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f}) |",
            flush=True,
        )


def equal(got: Transcript, expected: Times) -> bool:
    """Return whether tokens, and the times of segments and words that were asked for, are those of `generate`."""
    if list(got.tokens) != [number for *_, ids, _ in expected for number in ids]:
        return False
    words = {word.end for part in got.segments for word in part.words}
    times = [(part.start, part.end) for part in got.segments]
    return not times or (times == [each[:2] for each in expected] and words <= {end for *_, ends in expected for end in ends})


if __name__ == "__main__":
    main()
