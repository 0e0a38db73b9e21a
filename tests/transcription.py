"""Whisper's transcription with a drafter beside transformers' own, on real recordings: equality, tokens a call, word error rate, seconds.

    python -m tests.transcription                                      # the two Whispers that fetch_whisper.py keeps
    python -m tests.transcription --kinds digits --batch-size 4 --draft-length 8 12 --timestamps segment
    python -m tests.transcription --kinds long --timestamps word --fallback --condition
    python -m tests.transcription --seconds --rounds 3                  # and seconds, with transformers' assisted generation

transformers' `generate` runs on every recording alone for the texts and times that are compared. Counts do not depend on the machine, but
for drafts of "auto", whose lengths follow the seconds of forwards. With `--seconds` it runs on every batch, too, and so does its assisted
generation on batches of one; all take turns, and ratios are medians with quartiles over batches and rounds. faster-whisper is a contender
of `mmspec bench --suite whisper`. `long` are three recordings of more than 60 seconds: all sentences of LJ Speech in a row, three times in
another order.
"""

import argparse
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from rich.progress import track

import mmspec
from mmspec.bench.compare.peers import assistance
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
    parser.add_argument("--batch-size", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--draft-length", nargs="+", default=["5", "8", "12", "auto"], help="draft tokens a round")
    parser.add_argument("--timestamps", nargs="+", default=["none", "word"], choices=["none", "segment", "word"])
    parser.add_argument("--language", default="en", help="of the recordings; auto detects it")
    parser.add_argument("--fallback", action="store_true")
    parser.add_argument("--condition", action="store_true")
    parser.add_argument("--limit", type=int, default=8, help="recordings of a kind")
    parser.add_argument("--seconds", action="store_true", help="time transformers' generate and mmspec without a drafter, too")
    parser.add_argument("--rounds", type=int, default=1, help="how often every batch is timed")
    args = parser.parse_args()
    if args.rounds > 1 and not args.seconds:
        parser.error("--rounds repeats what is timed: give --seconds, too")
    pair = load_transcriber(args.model, args.drafter)
    print(f"{pair.name} drafted by {args.drafter}, {provenance(pair.target.device)['device']}, {torch.get_num_threads()} threads\n")
    columns = ["recordings", "times", "batch", "run by", "same text and times", "tokens a call", "words wrong, %"]
    columns += ["x `generate`"] if args.seconds else []
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for kind in args.kinds:
        found = recordings(kind)[: args.limit]
        for times in (None if each == "none" else each for each in args.timestamps):
            own = [by_generate(pair, args, [each], times) for each in track(found, f"{kind} alone")]
            for size in args.batch_size:
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


def by_generate(
    pair: Pair, args: argparse.Namespace, clips: Sequence[Recording], times: str | None, assist: dict[str, Any] | None = None
) -> Times:
    """Return start, end, tokens and their times of every segment, of all recordings in a row, by transformers' own `generate`.

    `assist` are its options of assisted generation.
    """
    features, mask = features_of(pair.processor.feature_extractor, [clip.wave for clip in clips])
    long = len(clips[0].wave) > pair.processor.feature_extractor.n_samples
    asked = {"return_timestamps": bool(long or times), "return_token_timestamps": times == "word"}
    asked |= {"language": args.language, "task": "transcribe"} if args.language != "auto" else {"task": "transcribe"}
    asked |= assist or {}
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


ASSISTED = "assisted"


def table(pair: Pair, args: argparse.Namespace, clips: Sequence[Recording], own: Sequence[Times], times: str | None, size: int) -> None:
    """Print the rows of one kind, timestamps and batch size."""
    ways = [None, *args.draft_length] if args.seconds else list(args.draft_length)
    ways += [ASSISTED] if args.seconds and size == 1 and pair.model is not None else []
    same, wrong = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    tokens, calls = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
    ratios: dict[str | None, list[float]] = {way: [] for way in ways}
    starts = range(0, len(clips), size)
    for turn in range(args.rounds):
        for first in track(starts, f"{clips[0].kind}, batch {size}"):
            batch, expected = clips[first : first + size], own[first : first + size]
            plain = timed(lambda batch=batch: by_generate(pair, args, batch, times))[1] if args.seconds else float("nan")
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                if way == ASSISTED:
                    found, seconds = timed(lambda batch=batch: by_generate(pair, args, batch, times, assistance(pair, 0)))
                    agree, texts = int(found == expected[0]), [written(pair, found)]
                else:
                    out, seconds = timed(lambda batch=batch, way=way: by_mmspec(pair, args, batch, times, way))
                    agree, texts = sum(equal(got, row) for got, row in zip(out.transcripts, expected, strict=True)), out.texts
                    tokens[way] += out.stats.tokens
                    calls[way] += out.stats.row_calls
                ratios[way].append(plain / seconds)
                if not turn:
                    same[way] += agree
                    wrong[way] += sum(word_errors([compared_words(each.text) for each in batch], [compared_words(text) for text in texts]))
    words = sum(len(compared_words(each.text).split()) for each in clips)
    for way in ways:
        name = {None: "mmspec, no drafter", ASSISTED: "transformers, assisted"}.get(way, f"mmspec, drafts of {way}")
        rate = f"{tokens[way] / calls[way]:.2f}" if calls[way] else ""
        cells = [clips[0].kind, times or "none", str(size), name, f"{same[way]} of {len(clips)}", rate, f"{100 * wrong[way] / words:.1f}"]
        if args.seconds:
            spread = Spread.of(ratios[way])
            cells.append(f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})")
        print(f"| {' | '.join(cells)} |", flush=True)


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what `run` returns, and the seconds that it took."""
    began = perf_counter()
    found = run()
    return found, perf_counter() - began


def written(pair: Pair, found: Times) -> str:
    """Return the text of the segments of one recording."""
    return pair.processor.tokenizer.decode([number for *_, ids, _ in found for number in ids], skip_special_tokens=True)


def equal(got: Transcript, expected: Times) -> bool:
    """Return whether tokens, and the times of segments and words that were asked for, are those of `generate`."""
    if list(got.tokens) != [number for *_, ids, _ in expected for number in ids]:
        return False
    words = {round(word.end, 2) for part in got.segments for word in part.words}  # `generate` gives times in single precision
    ends = {round(float(end), 2) for *_, some in expected for end in some}
    times = [(part.start, part.end) for part in got.segments]
    return not times or (times == [each[:2] for each in expected] and words <= ends)


if __name__ == "__main__":
    main()
