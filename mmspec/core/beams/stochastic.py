"""Stochastic beams: a level's winners are the K best of score / temperature + g, with Gumbel noise g keyed by the path.

The K largest are K distinct paths drawn one after the other without replacement (Gumbel top-k, Kool et al. 2019), level by level as in beam
sampling; Kool's search, whose noise is passed from parent to child, draws whole sequences without replacement and is another method. The
noise is a pure function of seed, level and trie node. So a drafter ranks its own draft tokens with the same noise (`SharedNoise` as the key
of `Anchored`), and the items are those of undrafted beam sampling with that seed, whatever is drafted.

Compared with transformers: both draw from softmax(score / temperature) over all pairs, without replacement. transformers draws 2K of them
and continues with the K of best score; on the last level it keeps the first K drawn. Here K are drawn on every level and all are kept. So a
search of one level has transformers' distribution, and a deeper one has that of transformers if it drew K.
"""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.beams.pairs import SampledBeams, check_temperature
from mmspec.core.beams.search import BeamLevel, best_indices
from mmspec.core.noise import Noise
from mmspec.core.rows.changes import RowRecord
from mmspec.core.rules.base import TOKEN_EXACT


@dataclass(frozen=True)
class SharedNoise(RowRecord):
    """The ranking key: path scores with the target's own noise."""

    by_row = ("temperature",)

    temperature: float | Tensor  # or by row, float64 [B, 1]

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def __call__(self, score: Tensor, state: Tensor, level: Tensor, noise: Noise) -> Tensor:
        """[B, S] float64, from path scores [B, S] of trie nodes `state` [B, S] on `level` [B, 1]. -inf stays what it is."""
        return score.double() / self.temperature + noise.value(level).gumbel_at(state[:, None])[:, 0]


@dataclass(frozen=True)
class StochasticBeams(SampledBeams):
    """Beam sampling: K distinct paths a level. Its limit at temperature 0 is `TopKBeams`."""

    coupled = True
    exactness = TOKEN_EXACT

    def pick(self, level: BeamLevel, noise: Noise) -> Tensor:
        return best_indices(SharedNoise(self.temperature)(level.score, level.state, level.committed, noise), self.k)
