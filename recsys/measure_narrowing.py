"""What could be left out of a beam search: beams that cannot win (exact), and beams far behind the best (lossy); beside them AtSpeed-R.

    python recsys/measure_narrowing.py --users 500                   (6 minutes of one CPU core)

On the shipped recommender and users it has not seen, k items each. The score of a path never rises, so a beam whose score is not above that
of the level's K-th winner has no child among the winners: it need not be run, and the items stay the same. Which beams these are is known
once the better ones have been run, so leaving them out saves columns of a forward and never a forward. `--within` prunes inner levels:
beams more than so many nats behind the row's best are dropped. Columns count beams that are run, as a share of plain search's; overlap is
the share of plain search's items that are kept, recall that of users whose next item is in the list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import mmspec
from mmspec.bench.compare.recommendations import overlap
from mmspec.core.beams.search import BeamLevel, TopKBeams, best_indices
from mmspec.core.beams.stopping import BeamStopping
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.drafters.none import NoDraft
from mmspec.minis.shop import Shop
from mmspec.models.beam_target import BeamTarget
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.recsys import metrics, recommend
from mmspec.recsys.catalogue import Catalogue
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import machine, provenance


@dataclass
class Counts:
    """Beams that were run, and those of them that could win, from the second level on."""

    run: int = 0
    winning: int = 0
    beams: list[Tensor] = field(default_factory=list)  # scores of the level before


@dataclass(frozen=True)
class Counting(TopKBeams):
    """Beam search that counts, and drops beams more than `within` nats behind a row's best before the last level."""

    within: float = float("inf")
    counts: Counts = field(default_factory=Counts)

    def pick(self, level: BeamLevel, noise: Noise) -> Tensor:
        index = best_indices(level.score, self.k)
        score = torch.where(index >= 0, level.score.gather(1, index.clamp_min(0)), -torch.inf)
        if int(level.committed.max()):
            before = self.counts.beams.pop()
            self.counts.run += int((before > -torch.inf).sum())
            self.counts.winning += int((before > score[:, -1:]).sum())
        if int(level.committed.max()) < self.trie.levels - 1:
            index = torch.where(score >= score[:, :1] - self.within, index, -1)
            self.counts.beams.append(torch.where(index >= 0, score, -torch.inf))
        return index


@torch.no_grad()
def search(model: torch.nn.Module, catalogue: Catalogue, users: Sequence[Sequence], rule: Counting) -> list[list]:
    """The items of every user."""
    inputs, rows = catalogue.inputs(users, "cpu"), len(users)
    stopping, target = BeamStopping(rows, catalogue.levels, rule.k), BeamTarget(HFTarget(model, family_of(model)), catalogue.trie)
    settings = {"stopping": stopping, "noise": Noise.from_seed(0, rows, "cpu"), "control": Fixed(0)}
    for _ in decode(target, NoDraft(), rule, inputs, **settings):
        pass
    score, order = stopping.score.sort(dim=-1, descending=True, stable=True)
    leaves = (stopping.state.gather(1, order) - catalogue.trie.starts[-1]).masked_fill(score == -torch.inf, -1).tolist()
    return [[catalogue.items[shelf] for leaf in line if leaf >= 0 for shelf in catalogue.shelf(leaf)][: rule.k] for line in leaves]


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--users", type=int, default=500)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 20])
    parser.add_argument("--within", type=float, nargs="+", default=[4.0, 3.0, 2.0, 1.0])
    parser.add_argument("--smoke", action="store_true", help="a few users, one k")
    args = parser.parse_args()
    if args.smoke:
        args.users, args.k, args.within = 6, [5], [2.0]
    mini = mmspec.load("recsys")
    everyone = Shop.of().histories(args.users, seed=2)
    users, truths = [user[:-1] for user in everyone], [user[-1:] for user in everyone]
    parts = [slice(first, first + 50) for first in range(0, args.users, 50)]
    for k in args.k:
        plain: list[list] = []
        for within in (float("inf"), *args.within):
            rule = Counting(mini.catalogue.trie, k, within)
            found = [items for part in parts for items in search(mini.target, mini.catalogue, users[part], rule)]
            plain = plain or found
            whole = k * args.users * (mini.catalogue.levels - 1)
            kept, recall = overlap(found, plain), metrics.recall(found, truths, k)
            columns = f"columns {rule.counts.run / whole:.3f}, that can win {rule.counts.winning / whole:.3f}"
            print(f"k {k}, within {within:g}: {columns}; overlap {kept:.3f}, recall {recall:.4f}", flush=True)
        for method in ("strict", "coupled", "sample", "relaxed"):
            settings = {"k": k, "catalogue": mini.catalogue, "drafter": mini.drafters["model"], "method": method}
            outs = [recommend(mini.target, users[part], seed=part.start, **settings) for part in parts]
            found, calls = [items for out in outs for items in out.items], sum(out.stats.row_calls for out in outs) / args.users
            kept, recall = overlap(found, plain), metrics.recall(found, truths, k)
            print(f"k {k}, {method}: {calls:.2f} calls a user; overlap {kept:.3f}, recall {recall:.4f}", flush=True)
    about = provenance(mini.target.device)
    print(machine(about), about["date"])


if __name__ == "__main__":
    main()
