"""What each drafter of mini vlm brings, by what it sees of the picture: tokens a call, and seconds beside transformers' own ways.

    python text/compare_views.py                            # 256 held-out descriptions, 24 of them timed
    python text/compare_views.py --form questions --timed 0

Counts are exact and the same on every machine; outputs are asserted to be those of transformers' plain `generate`. Ratios are seconds,
request by request at batch 1, contenders taking turns in one process, medians with quartiles: encoders, prefill, the drafter's own
prefill, and for the caption view the making of the caption, are all counted. "x assisted" is against transformers' own assisted
generation with the same drafter, at 5 or 12 draft tokens a round, whichever was faster for that request (it runs the seeing drafter without
its picture); heads are set beside the latter.
Captured ways compile their forwards once a process, in their first, untimed request (that takes a C++ compiler, and up to a minute).
"""

import argparse
from pathlib import Path
from typing import Any

import mmspec
from mmspec.bench.compare.peers import Outcome
from mmspec.bench.compare.run import Spread
from mmspec.bench.compare.vlm import PLAIN, AnswerTally, Peer, answered, by_transformers, captured, in_turns, peers, peers_of, vlm_methods
from mmspec.minis import Mini
from mmspec.minis import vlm_model as sights
from mmspec.utils.files import write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track

HELD = 7 * 10**9  # scenes from here on were neither trained on nor looked at


def counted(mini: Mini, rows: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, AnswerTally]:
    """Counts of every way over all requests, in batches. Outputs must be plain transformers'."""
    asked = sights.asked(HELD, args.requests, args.form)
    tallies = {name: AnswerTally() for name in rows}
    for first in track(range(0, len(asked), args.batch_size), f"count {args.form}"):
        inputs = sights.inputs_of(mini.processor, asked[first : first + args.batch_size])
        wanted = by_transformers(mini, inputs, Peer(), args.max_new_tokens).tokens
        for name, options in rows.items():
            tallies[name].add(answered(mini, inputs, options, args.max_new_tokens, tallies[name]), wanted)
            if tallies[name].same != tallies[name].asked:
                raise SystemExit(f"{name} does not say what plain decoding says")
    return tallies


def timed(mini: Mini, rows: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, AnswerTally]:
    """Seconds of every way and of transformers', in turns, at batch 1."""
    others = peers(mini)
    tallies = {name: AnswerTally() for name in (*others, *rows)}
    asked = sights.asked(HELD, args.requests, args.form)

    def run(name: str, inputs: Any, tally: AnswerTally) -> Outcome:
        if name in others:
            return by_transformers(mini, inputs, others[name], args.max_new_tokens)
        return answered(mini, inputs, rows[name], args.max_new_tokens, tally)

    for name in track(tallies, "warm up"):
        run(name, sights.inputs_of(mini.processor, asked[-1:]), AnswerTally())
    step = max(1, len(asked) // max(1, args.timed))
    for turn, each in enumerate(track(asked[::step][: args.timed], "time")):
        inputs = sights.inputs_of(mini.processor, [each])
        wanted = by_transformers(mini, inputs, Peer(), args.max_new_tokens).tokens
        for name in in_turns(tallies, turn):
            tallies[name].add(run(name, inputs, tallies[name]), wanted)
    return tallies


def table(counts: dict[str, AnswerTally], times: dict[str, AnswerTally]) -> list[dict[str, Any]]:
    found = []
    for name in dict.fromkeys((*times, *counts)):
        tally, own = counts.get(name) or times[name], times.get(name, AnswerTally())
        best = [min(each) for each in zip(*(times[peer].seconds for peer in peers_of(name) if peer in times), strict=True)]
        found.append(
            {
                "way": name,
                "tokens_per_call": tally.tokens / max(1, tally.calls),
                "accepted_per_call": tally.stats.accepted_per_call if name in counts else None,
                "requests": tally.asked,
                "ratio_to_plain": _spread(times.get(PLAIN, AnswerTally()).seconds, own.seconds),
                "ratio_to_assisted": None if name in (PLAIN, "plain", "plain, captured") else _spread(best, own.seconds),
                "seconds": own.phases or None,
            }
        )
    return found


def _spread(base: list[float], own: list[float]) -> dict[str, float] | None:
    found = Spread.of([other / mine for other, mine in zip(base, own, strict=True)]) if own else None
    return None if found is None else vars(found)


def markdown(rows: list[dict[str, Any]]) -> str:
    def cell(spread: dict[str, float] | None) -> str:
        return "" if spread is None else f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"

    lines = ["| way | tokens a call | x plain | x assisted |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['way']} | {row['tokens_per_call']:.2f} | {cell(row['ratio_to_plain'])} | {cell(row['ratio_to_assisted'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--form", choices=("describe", "questions", "pairs"), default="describe")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--timed", type=int, least=0, default=24, help="requests timed at batch 1")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=sights.LONGEST)
    parser.add_argument("--only", nargs="+", help="ways to run; plain is always among them")
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="two ways, two requests")
    args = parser.parse_args()
    if args.smoke:
        args.requests, args.timed, args.max_new_tokens, args.only = 2, 1, 4, ["text, newline"]
    mini = mmspec.load("vlm")
    known = vlm_methods(mini)
    if wrong := set(args.only or ()) - known.keys():
        parser.error(f"unknown way {sorted(wrong)[0]!r}; valid: {', '.join(known)}")
    rows = {name: options for name, options in known.items() if args.only is None or name in ("plain", *args.only)}
    compiled = {} if args.smoke else captured(rows)
    found = table(counted(mini, rows, args), timed(mini, rows | compiled, args) if args.timed else {})
    if args.out is not None:
        write_json(args.out, {"form": args.form, "rows": found, "provenance": provenance(mini.target.device)})
    print(markdown(found))


if __name__ == "__main__":
    run_recipe(main)
