"""The match rule: keep draft tokens while they equal the target's own draws."""

from dataclasses import dataclass

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import TOKEN_EXACT, follow


@dataclass(frozen=True)
class Match:
    """Keep draft tokens while they equal the target's own draws: exact for any draft, and best for deterministic ones.

    The draws are keyed by seed and output position alone, so the tokens are those of plain sampling with that seed.
    """

    exactness = TOKEN_EXACT
    coupled = False
    uses_q = False
    trees = True

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        return follow(draft, scored.p, noise.value(draft.position()))

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return p
