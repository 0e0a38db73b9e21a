"""Heads beside plain decoding on sentences of LJ Speech: equality, decoder calls, and the word error rate of each threshold.

python -m tests.heads_table --heads build/heads/latent              # and --kinds joined for windows of 30 seconds
"""

import argparse

import mmspec
from mmspec.bench.suites.recordings import compared_words, recordings_of
from mmspec.core.rules.lossy.always_accept import Threshold
from mmspec.loading.hearing import load_transcriber
from mmspec.loading.wheels import model_folder
from mmspec.speech.sound.recogniser import word_errors

RATE = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(model_folder("whisper-tiny.en")))
    parser.add_argument("--heads", required=True)
    parser.add_argument("--kinds", nargs="+", default=["ljspeech"])
    parser.add_argument("--taus", nargs="+", type=float, default=[0.0, 0.5, 0.7, 0.9, 0.99])
    parser.add_argument("--length", type=int, default=4, help="draft tokens a round")
    parser.add_argument("--limit", type=int, default=8)
    args = parser.parse_args()
    pair = load_transcriber(args.model, args.heads)
    print("| recordings | mode | text of plain decoding | tokens a call | words wrong, % | departures in 100 tokens |")
    print("|---|---|---|---|---|---|")
    for kind in args.kinds:
        clips = recordings_of(kind, RATE)[: args.limit]
        said = [compared_words(each.text) for each in clips]
        words, plain = sum(len(text.split()) for text in said), None
        modes = {"plain": {}, "verified": {}, "verified, a tree of (4, 2, 1)": {"tree": (4, 2, 1), "draft_length": 3}}
        modes |= {"verified, four beams of prefixes": {"tree": "beams", "draft_length": 4}}
        modes |= {f"threshold {tau:g}": {"accept": Threshold(tau)} for tau in args.taus}
        modes |= {f"threshold {tau:g}, then verified": {"accept": Threshold(tau, verify=True)} for tau in args.taus[1:]}
        for name, options in modes.items():
            shape = {} if name == "plain" or "draft_length" in options else {"draft_length": args.length}
            drafter = None if name == "plain" else pair.drafter
            out = mmspec.speech.transcribe(pair.target, pair.processor, [each.wave for each in clips], drafter, **options, **shape)
            tokens = [each.tokens for each in out.transcripts]
            plain = tokens if plain is None else plain
            same = sum(one == other for one, other in zip(tokens, plain, strict=True))
            wrong = sum(word_errors(said, [compared_words(text) for text in out.texts]))
            drift = "" if out.stats.drift is None else f"{100 * out.stats.drift / out.stats.tokens:.1f}"
            cells = (kind, name, f"{same} of {len(clips)}", f"{out.stats.tokens_per_call:.2f}", f"{100 * wrong / words:.1f}", drift)
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
