"""Learn keyed pools from finished answers (LASER, first named DARE), or measure on the shipped mini what they bring.

    python text/learn_pools.py out/part-*.jsonl --out pools.npz --group genre          # answers text/generate_batch.py wrote
    python text/learn_pools.py answers.jsonl --out pools.npz --tokenizer ./big         # any, with "group" and "text" or "tokens"
    python text/learn_pools.py                                                         # the table, on the mini's three kinds of prompts

Answers are JSON lines: "tokens" (ids), or "text" for the tokenizer, which must be the target's; the group's key beside it, lines without
one go to the shared pool. Then `Pools.load("pools.npz").drafter(["books", "films"])` drafts for a batch with a row of each.

The table: for each kind of prompt (worded sums, stories, plays) a pool learns the mini's own greedy answers to --learn prompts it was
trained on, then drafts for --test held-out ones, one at a time, 64 draft tokens of depth 12 at most. Beside it: prompt lookup, the same
drafter without a pool, with another kind's, and its own under LASER's relaxed rule (k = 2, tau = 0.1), whose drift counts the tokens
kept that are not the target's best. Counts are the same on every machine. It needs MMSPEC_DATA.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mmspec
from mmspec.core.stats import Stats
from mmspec.drafters.retrieval.pools import Pools
from mmspec.minis.corpus import documents, split
from mmspec.train.held_out import apart
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command
from mmspec.utils.screen import track

Prompts = dict[str, list[str]]


def answers(paths: list[Path], group: str, name: str) -> Iterator[tuple[str | int | None, list[int]]]:
    """(key, ids) of every line."""
    tokenizer: Any = None
    for path in paths:
        if not path.is_file():
            raise ValueError(f"answers file {path} does not exist: give JSON lines")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                tokens, key = record.get("tokens"), record.get(group)
                if tokens is None:
                    tokenizer = tokenizer or tokenizer_of(name)
                    tokens = tokenizer(record["text"], add_special_tokens=False)["input_ids"]
            except (ValueError, TypeError, KeyError, AttributeError):
                raise ValueError(f'{path}, line {number} is no answer: give an object with "tokens" or "text" and {group!r}') from None
            yield key, tokens


def tokenizer_of(name: str) -> Any:
    if name == "mini":
        return mmspec.load("text").processor
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def learn(args: argparse.Namespace) -> str:
    if args.out is None or args.out.suffix != ".npz":
        raise ValueError(f"--out is {args.out}: pools need a file whose name ends in .npz")
    pools, texts = Pools(), defaultdict(list)
    for key, tokens in answers(args.paths, args.group, args.tokenizer):
        texts[key].append(tokens)
    for key, found in track(texts.items(), "groups"):
        pools.learn(key, found)
    pools.save(args.out)
    sizes = ", ".join(f"{'shared' if key is None else key}: {len(found)}" for key, found in texts.items())
    return f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB; answers learnt, {sizes or 'none'}"


# --- the table --------------------------------------------------------------------------------------------------------


def kinds(learnt: int, tested: int) -> tuple[Prompts, Prompts]:
    """Prompts to learn from, of documents the mini was trained on, and held-out ones, by kind."""
    found: tuple[Prompts, Prompts] = (defaultdict(list), defaultdict(list))
    texts = documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))
    parts = split(texts)
    for part, index in (*((0, number) for number in parts.train), *((1, number) for number in parts.held)):
        text = texts[index]
        kind = text.split(":")[0]
        opening = text.split("Answer:")[0] + "Answer:" if "Answer:" in text else text[:140].rsplit(" ", 1)[0]
        found[part][kind].append(opening)
    unseen = {kind: [prompts[n] for n in apart(found[0][kind], prompts, "prompts").held] for kind, prompts in found[1].items()}
    return {k: v[:learnt] for k, v in found[0].items()}, {k: v[:tested] for k, v in unseen.items()}


def table(mini: Any, learnt: Prompts, tested: Prompts, new: int) -> str:
    def answer(prompts: list[str], **settings: Any) -> Any:
        batch = mini.processor(prompts, return_tensors="pt", padding=True)
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        return mmspec.text.generate(mini.target, inputs, max_new_tokens=new, draft_length=12, **settings)

    pools, names = Pools(), list(tested)
    for kind, prompts in learnt.items():
        for first in track(range(0, len(prompts), 16), f"learn {kind}"):
            out = answer(prompts[first : first + 16])
            pools.learn(kind, [row[:n] for row, n in zip(out.sequences, out.lengths.tolist(), strict=True)])
    other = dict(zip(names, [*names[1:], names[0]], strict=True))
    contenders = {
        "prompt lookup": lambda kind: {"drafter": "lookup"},
        "no pool": lambda kind: {"drafter": pools.drafter("nobody's")},
        "another kind's pool": lambda kind: {"drafter": pools.drafter(other[kind])},
        "its pool": lambda kind: {"drafter": pools.drafter(kind)},
        "its pool, `topk-floor`": lambda kind: {"drafter": pools.drafter(kind), "accept": "topk-floor"},
    }
    cells: dict[str, list[str]] = {name: [] for name in contenders}
    for kind, prompts in tested.items():
        plain = [answer([prompt]).sequences.tolist() for prompt in track(prompts, f"plain {kind}")]
        for name, settings in contenders.items():
            stats, same = Stats(), 0
            for prompt, expected in zip(track(prompts, f"{name}, {kind}"), plain, strict=True):
                out = answer([prompt], on_step=stats.add, **settings(kind))
                same += out.sequences.tolist() == expected
            drift = f"{100 * stats.drift / stats.tokens:.1f}" if stats.drift else "0"
            cells[name].append(f"{stats.tokens_per_call:.2f} | {drift} | {same} of {len(prompts)}")
    head = "| drafts from |" + "".join(f" {kind}: tokens a call | drift in 100 tokens | same text |" for kind in names)
    return "\n".join([head, "|---" * (1 + 3 * len(names)) + "|", *(f"| {name} | {' | '.join(row)} |" for name, row in cells.items())])


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("paths", type=Path, nargs="*", help="JSON lines; without any, the table")
    parser.add_argument("--out", type=Path, help="FILE.npz")
    parser.add_argument("--group", default="group", help="the name of the group's key in every line")
    parser.add_argument("--tokenizer", default="mini", help="for lines without ids: the shipped mini's, a folder or a hub name")
    parser.add_argument("--learn", type=int, default=48, help="prompts of a kind to learn from")
    parser.add_argument("--test", type=int, default=8, help="held-out prompts of a kind")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--smoke", action="store_true", help="the table from four of the mini's examples and a few tokens")
    args = parser.parse_args()
    try:
        if args.paths:
            print(learn(args))
            tell_command("mmspec", "text", "Once upon a time", "--model", args.tokenizer, "--drafter", args.out)
            return
        mini = mmspec.load("text")
        if args.smoke:
            examples, args.max_new_tokens = mini.processor.batch_decode(mini.examples["input_ids"], skip_special_tokens=True), 6
            learnt, tested = ({"Question": examples[i : i + 1], "Story": examples[8 + i : 9 + i]} for i in (0, 1))
        else:
            learnt, tested = kinds(args.learn, args.test)
        print(table(mini, learnt, tested, args.max_new_tokens))
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    run_recipe(main)
