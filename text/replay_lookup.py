"""Drafts that copy ids, replayed on a model's recorded texts: transformers' prompt lookup beside mmspec's drafters and draft lengths.

    python text/replay_lookup.py record --model FOLDER --out texts.json      # greedy texts, and what a forward costs by columns
    python text/replay_lookup.py replay texts.json                           # a table by kind of prompt, in seconds

Under greedy decoding a draft token is accepted where it equals the recorded text, so a recording tells what every drafter would have done
on it. Rounds are charged what mmspec's forward of as many columns took on the machine of the recording; transformers' rounds are charged
the same. Texts are replayed in the recorded order, and "kept" shares what is learnt about draft lengths between them.
"""

import argparse
import json
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from mmspec.bench.replay import Cost, replay
from mmspec.bench.suites.prompts import KINDS, prompts_of
from mmspec.bench.suites.verify_step import verify_steps
from mmspec.core.control import Fixed
from mmspec.core.draft_length.by_match import ByMatch, MatchRecord
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.suffix import Suffix
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, TargetSection
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import provenance

COLUMNS = (1, 2, 3, 4, 5, 6, 8, 11, 16, 24, 32)


def record(args: argparse.Namespace) -> dict:
    """Greedy texts of prompts drawn from every kind, and milliseconds of a forward by columns."""
    pair = load_pair(Config(target=TargetSection(path=args.model), drafter=DrafterSection(kind="none")))
    model, draw, texts = pair.target, random.Random(args.seed), []
    for kind in KINDS:
        prompts = prompts_of(kind)
        for prompt in draw.sample(prompts, min(args.per_kind, len(prompts))):
            ids = pair.tokenizer(prompt.text, return_tensors="pt")["input_ids"][:, : args.max_prompt_tokens]
            out = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, top_k=None, top_p=None, max_new_tokens=args.new
            )
            texts.append({"kind": kind, "name": prompt.name, "prompt": ids[0].tolist(), "output": out[0, ids.shape[1] :].tolist()})
            print(f"{prompt.name}: {len(texts[-1]['output'])} tokens", flush=True)
    columns = COLUMNS[:3] if args.smoke else COLUMNS
    rows, _ = verify_steps(model, columns, 16 if args.smoke else 384, 3 if args.smoke else 12, None)
    costs = {row["tokens"]: row["ms"] for row in rows}
    return {"texts": texts, "costs_ms": costs, "seed": args.seed, "provenance": provenance(model.device)}


def prompt_lookup(prompt: list[int], output: list[int], cost: Cost) -> float:
    """Seconds of transformers' prompt lookup, whose draft tokens are copied after the first match of the last two tokens, or of one."""
    peer = PromptLookupCandidateGenerator(num_output_tokens=10, max_matching_ngram_size=2, max_length=len(prompt) + len(output))
    done, seconds = 0, 0.0
    while done < len(output):
        text = [*prompt, *output[:done]]
        draft = peer.get_candidates(torch.tensor([text]))[0][0, len(text) :].tolist()
        draft = draft[: len(output) - done - 1]
        done += 1 + next((n for n, token in enumerate(draft) if token != output[done + n]), len(draft))
        seconds += cost(len(draft) + 1)
    return seconds


def contenders() -> dict[str, Callable[[list[int], list[int], Cost], float]]:
    kept = MatchRecord()
    return {
        "transformers' lookup": prompt_lookup,
        "lookup, 10 draft tokens": lambda p, o, c: replay(p, o, Lookup(), Fixed(10), c).seconds,
        "lookup, auto": lambda p, o, c: replay(p, o, Lookup(), ByMatch(), c).seconds,
        "lookup, auto, kept": lambda p, o, c: replay(p, o, Lookup(), ByMatch(record=kept), c).seconds,
        "suffix, auto": lambda p, o, c: replay(p, o, Suffix(), ByMatch(), c).seconds,
    }


def costs_between(measured: Mapping[str, float]) -> Cost:
    """The line through measured costs; beyond the last one, in proportion."""
    points = sorted((int(columns), ms / 1000) for columns, ms in measured.items())

    def cost(columns: int) -> float:
        for (left, low), (right, high) in pairwise(points):
            if columns <= right:
                return low + (high - low) * (columns - left) / (right - left)
        return points[-1][1] * columns / points[-1][0]

    return cost


def table(found: dict) -> None:
    """Print seconds of plain decoding over those of each contender, by kind, and ratios to prompt lookup."""
    cost, runs = costs_between(found["costs_ms"]), contenders()
    speeds: dict[str, dict[str, list[float]]] = {}
    for text in found["texts"]:
        plain = cost(1) * len(text["output"])
        for name, run in runs.items():
            speeds.setdefault(name, {}).setdefault(text["kind"], []).append(plain / run(text["prompt"], text["output"], cost))
    kinds = list(dict.fromkeys(text["kind"] for text in found["texts"]))
    print(f"| times plain decoding, medians | {' | '.join(kinds)} | mean | least | to lookup, mean | least |")
    print("|---" * (len(kinds) + 5) + "|")
    peers = [value for kind in kinds for value in speeds["transformers' lookup"][kind]]
    for name, by_kind in speeds.items():
        values = [value for kind in kinds for value in by_kind[kind]]
        ratios = [value / peer for value, peer in zip(values, peers, strict=True)]
        cells = [*(median(by_kind[kind]) for kind in kinds), mean(values), min(values), mean(ratios), min(ratios)]
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("part", nargs="?", choices=("record", "replay"), default="record")
    parser.add_argument("texts", nargs="?", type=Path, help="the recording to replay")
    parser.add_argument("--model", default="mini", help="a folder, a GGUF file or a mini")
    parser.add_argument("--per-kind", type=int, default=4, help="prompts of each of the eight kinds")
    parser.add_argument("--new", type=int, default=128, help="new tokens")
    parser.add_argument("--max-prompt-tokens", type=int, default=900, help="longer prompts are cut")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of prompts")
    parser.add_argument("--out", type=Path, help="where the recording is written")
    parser.add_argument("--smoke", action="store_true", help="short texts of the mini that show that everything runs")
    args = parser.parse_args()
    if args.part == "replay":
        if args.texts is None:
            parser.error("give the recording to replay")
        table(json.loads(args.texts.read_text(encoding="utf-8")))
        return
    if args.smoke:
        args.per_kind, args.new, args.max_prompt_tokens = 1, 8, 40
    found = record(args)
    if args.out is not None:
        write_json(args.out, found)
    found["costs_ms"] = {str(columns): ms for columns, ms in found["costs_ms"].items()}
    table(found)


if __name__ == "__main__":
    main()
