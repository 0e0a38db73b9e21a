"""The greedy rule: the tokens of greedy decoding, whatever the draft."""

from dataclasses import dataclass

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import TOKEN_EXACT, follow


@dataclass(frozen=True)
class Greedy:
    """Keep draft tokens while each is the target's most likely value: the tokens of greedy decoding, whatever the draft."""

    reads_raw = True  # at temperature 0 it reads distributions before temperature
    exactness = TOKEN_EXACT
    coupled = False
    uses_q = False
    trees = True

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return follow(draft, scored.p, None)

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return Categorical.point(p.mode(), p.scores.shape[-1], p.scores.dtype)
