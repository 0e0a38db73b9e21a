"""Items as titles written by a language model, drafted from pools of real titles (LASER, Xi et al. 2025): tokens a call by pool.

    python recsys/draft_titles.py --data amazon-industrial           (15 minutes of one core; needs MMSPEC_DATA)
    python recsys/draft_titles.py --smoke

A small Llama is trained on users' histories, one title a line, the newest last, and then writes the title of each test user's next item,
greedily. Pools hold real titles: all of them, those whose items share the first semantic id with the user's newest item, those bought by
users who share an item with this user (last events of test users left out), or these and all. Beside them: prompt lookup and a suffix
automaton, which read the prompt alone. All are token-exact; the last two lines are LASER's relaxed rule (k = 2, tau = 0.1), whose drift
counts tokens that are not the target's best. Counts do not depend on the machine's load.
"""

import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.core.stats import Stats
from mmspec.drafters.retrieval.pools import Pools
from mmspec.train.loop import Fit, fit
from mmspec.utils.places import RecipeParser

LENGTH, NEW, SHOWN = 128, 48, 4  # tokens of a training window and of a title at most, and titles that a prompt shows


class Titles:
    """Titles as token ids, and users' histories, from records of items and of events in order."""

    def __init__(self, rows: list[dict[str, Any]], events: list[dict[str, Any]]):
        found: dict[str, list[int]] = defaultdict(list)
        for event in events:
            found[event["user"]].append(event["item"])
        self.users = [line for line in found.values() if len(line) > 2]
        self.group = {row["item"]: row["codes"][0] for row in rows}
        self.tokenizer = ByteLevelBPETokenizer()
        texts = {row["item"]: " ".join(row["title"].split()) + "\n" for row in rows}
        self.tokenizer.train_from_iterator(texts.values(), vocab_size=2048, show_progress=False)
        self.ids = {item: self.tokenizer.encode(text).ids[-NEW:] for item, text in texts.items()}
        self.end, self.size = self.tokenizer.encode("\n").ids[-1], self.tokenizer.get_vocab_size()

    def of(self, items: list[int]) -> list[int]:
        """Token ids of a history."""
        return [token for item in items for token in self.ids[item]]

    def window(self, turn: int, rows: int) -> Tensor:
        """A batch of windows of histories without their last items."""
        pick = torch.Generator().manual_seed(turn)
        lines = []
        for user in torch.randint(len(self.users), (rows,), generator=pick).tolist():
            line = self.of(self.users[user][:-1])
            while len(line) < LENGTH:
                line = line + self.of(self.users[(user + len(line)) % len(self.users)][:-1])
            lines.append(line[int(torch.randint(len(line) - LENGTH + 1, (1,), generator=pick)) :][:LENGTH])
        return torch.tensor(lines)


def model_of(size: int, width: int) -> LlamaForCausalLM:
    """A Llama without end token: a title ends with its line."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=size, eos_token_id=None, bos_token_id=None, tie_word_embeddings=True))


def pools_of(titles: Titles, tested: list[list[int]]) -> Pools:
    """All titles under None, those of a first code under its number, those of a test user's neighbours under the user's name."""
    pools, groups, buyers = Pools(limit=1024), defaultdict(list), defaultdict(set)
    for item, ids in titles.ids.items():
        groups[titles.group[item]].append([titles.end, *ids])
    for code, found in groups.items():
        pools.learn(f"group {code}", found)
    pools.learn(None, [[titles.end, *ids] for ids in titles.ids.values()])
    for number, line in enumerate(titles.users):
        for item in line[:-1]:
            buyers[item].add(number)
    for number, line in enumerate(tested):
        near = {item for one in line[:-1] for user in buyers[one] for item in titles.users[user][:-1]}
        pools.learn(f"user {number}", [[titles.end, *titles.ids[item]] for item in sorted(near)])
    return pools


def table(model: Any, titles: Titles, tested: list[list[int]]) -> list[str]:
    """A line for each source of draft tokens."""
    pools, real = pools_of(titles, tested), {tuple(ids) for ids in titles.ids.values()}
    prompts = [torch.tensor([titles.of(line[:-1][-SHOWN:])]) for line in tested]

    def write(number: int, stats: Stats, **settings: Any) -> list[int]:
        options = {"max_new_tokens": NEW, "draft_length": 12, "stops": [lambda row, values: values[-1] == titles.end], "on_step": stats.add}
        return mmspec.text.generate(model, {"input_ids": prompts[number]}, **(options | settings)).tokens[0].tolist()

    plain = [write(number, Stats()) for number in range(len(tested))]
    sources: dict[str, Any] = {
        "prompt lookup": lambda number: {"drafter": "lookup"},
        "suffix automaton": lambda number: {"drafter": "suffix"},
        "pool of all titles": lambda number: {"drafter": pools.drafter(None)},
        "pool of the newest item's group": lambda number: {"drafter": pools.drafter(f"group {titles.group[tested[number][-2]]}")},
        "pool of the user's neighbours": lambda number: {"drafter": pools.drafter(f"user {number}")},
        "all titles, `topk-floor`": lambda number: {"drafter": pools.drafter(None), "accept": "topk-floor"},
        "neighbours, `topk-floor`": lambda number: {"drafter": pools.drafter(f"user {number}"), "accept": "topk-floor"},
    }
    whole = sum(tuple(text) in real for text in plain)
    lines = [
        f"{whole} of {len(plain)} are real titles",
        "| drafts from | tokens a call | same text | drift in 100 tokens |",
        "|---|---|---|---|",
    ]
    for name, settings in sources.items():
        stats = Stats()
        texts = [write(number, stats, **settings(number)) for number in range(len(tested))]
        same = sum(mine == theirs for mine, theirs in zip(texts, plain, strict=True))
        drift = 100 * (stats.drift or 0) / stats.tokens
        lines.append(f"| {name} | {stats.tokens_per_call:.2f} | {same} of {len(tested)} | {drift:.1f} |")
    return lines


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument(
        "--data", default="amazon-industrial", help="a folder below MMSPEC_DATA with items.parquet and interactions.parquet"
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--test", type=int, default=24, help="test users")
    parser.add_argument("--smoke", action="store_true", help="two steps, and two test users")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.test = 2, 2
        rows = [{"item": n, "title": f"Steel bolt {n} mm, pack of {n % 7}", "codes": [n % 4]} for n in range(40)]
        titles = Titles(rows, [{"user": n % 8, "item": n * 7 % 40} for n in range(80)])
    else:
        home = Path(os.environ.get("MMSPEC_DATA", "../shared/data")) / args.data
        events = pq.read_table(home / "interactions.parquet").sort_by([("user", "ascending"), ("order", "ascending")])
        titles = Titles(pq.read_table(home / "items.parquet").to_pylist(), events.to_pylist())
    model = model_of(titles.size, 128)
    with tempfile.TemporaryDirectory() as work:
        plan = Fit(steps=args.steps, lr=3e-3, checkpoint_every=args.steps)
        losses = fit(model, lambda net, turn: net(input_ids=(ids := titles.window(turn, 12)), labels=ids).loss, plan, Path(work) / "c")
    print(f"{sum(each.numel() for each in model.parameters()) / 1e6:.2f} M parameters, loss {sum(losses[-50:]) / len(losses[-50:]):.3f}")
    step = max(1, len(titles.users) // args.test)
    print("\n".join(table(model.eval(), titles, titles.users[::step][: args.test])))


if __name__ == "__main__":
    main()
