"""Lists beside transformers' constrained beams on a shop of your own, with filters: `python -m tests.recsys.foreign shop/ --cases 1000`.

SHOP is a folder that `mmspec recommend prepare` and `train` wrote. A case is a user, k, a filter and a method; the reference is
`generate(num_beams=k, prefix_allowed_tokens_fn=...)` over the items that the filter leaves. Where two scores that decide are nearer than
1e-5 a case is counted as a near-tie and not compared. One JSON object is printed; the exit status is 1 where a list differs.
"""

import argparse
import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.loading.recsys import load_recommender
from mmspec.recsys import Catalogue, recommend
from mmspec.recsys.preparation.history_rows import HistoryRows
from tests.beam_world import transformers_beams

TIE, CLOSE, USERS = 1e-5, 1e-4, 10
KS = (1, 5, 10, 20)
FILTERS = ("none", "unseen", "deny", "allow", "mask", "mask a user", "all of them")


def filtered(name: str, catalogue: Catalogue, histories: list[list[Any]], pick: random.Random) -> tuple[dict[str, Any], Tensor]:
    """Options of `recommend`, and the items that they leave, [users, items]."""
    items, users = len(catalogue), len(histories)
    left = torch.ones(users, items, dtype=torch.bool)
    options: dict[str, Any] = {}
    if name in ("unseen", "all of them"):
        options["unseen"] = True
        for row, history in enumerate(histories):
            left[row, [catalogue.row(item) for item in history]] = False
    if name in ("deny", "all of them"):
        rows = [pick.sample(range(items), pick.randint(0, 300)) for _ in histories]
        options["deny"] = [[catalogue.items[place] for place in some] for some in rows]
        for row, some in enumerate(rows):
            left[row, some] = False
    if name in ("allow", "all of them"):
        rows = [pick.sample(range(items), pick.randint(1, items // 2)) for _ in histories]
        options["allow"] = [[catalogue.items[place] for place in some] for some in rows]
        for row, some in enumerate(rows):
            only = torch.zeros(items, dtype=torch.bool)
            only[some] = True
            left[row] &= only
    if name in ("mask", "all of them"):
        mask = torch.tensor([pick.random() < 0.5 for _ in range(items)])
        options["allowed"], left = mask, left & mask
    if name == "mask a user":
        options["allowed"] = torch.rand(users, items, generator=torch.Generator().manual_seed(pick.randrange(2**31))) < 0.3
        left &= options["allowed"]
    return options, left


def expected(catalogue: Catalogue, beams: list[tuple[tuple[int, ...], float]], left: Tensor, k: int) -> list[tuple[Any, float]]:
    """A ranking of paths as at most k items of those that are left."""
    found = []
    for path, score in beams:
        rows = (catalogue.paths.eq(torch.tensor(path)).all(1) & left).nonzero()[:, 0].tolist()
        found += [(catalogue.items[row], score) for row in rows]
    return found[:k]


def near_tie(wider: list[tuple[tuple[int, ...], float]], k: int, levels: int) -> bool:
    """Do two neighbours among the first k + 1 paths have nearly the same score?"""
    scores = [levels * score for _, score in wider[: k + 1]]
    return any(above - below < TIE for above, below in pairwise(scores))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shop", type=Path)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_recommender(str(args.shop), drafter="retriever")
    catalogue, pick = loaded.catalogue, random.Random(args.seed)
    table, counts = HistoryRows.read(args.shop / "histories.parquet", catalogue), {"equal": 0, "near-ties": 0, "different": 0}
    by_filter = dict.fromkeys(FILTERS, 0)
    turn = 0
    while counts["equal"] + counts["different"] < args.cases:
        name, k = FILTERS[turn % len(FILTERS)], KS[turn // len(FILTERS) % len(KS)]
        histories = [table[place][:-1] for place in pick.sample(range(len(table)), USERS)]
        options, left = filtered(name, catalogue, histories, pick)
        beams = transformers_beams(loaded.model, catalogue.inputs(histories), catalogue, k, left)
        for method, drafter in (("plain", None), ("strict", loaded.drafter)):
            out = recommend(loaded.model, histories, drafter, k=k, catalogue=catalogue, method=method, **options)
            for row in range(USERS):
                wanted, mine = expected(catalogue, beams[row], left[row], k), list(zip(out.items[row], out.scores[row], strict=True))
                same = [item for item, _ in mine] == [item for item, _ in wanted]
                same &= all(abs(a[1] - b[1]) < CLOSE for a, b in zip(mine, wanted, strict=False))
                kind = "equal" if same else "near-ties" if near_tie(beams[row], k, catalogue.levels) else "different"
                counts[kind] += 1
                by_filter[name] += kind == "equal"
                if kind == "different":
                    print(f"{name}, k={k}, {method}, {histories[row]}: {mine} is not {wanted}", file=sys.stderr)
        turn += 1
    print(json.dumps({"cases": sum(counts.values()), **counts, "equal by filter": by_filter, "items": len(catalogue)}))
    return int(counts["different"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
