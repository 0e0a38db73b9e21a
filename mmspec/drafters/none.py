"""No drafter: plain decoding through the same loop, the baseline of every comparison."""

from dataclasses import dataclass
from typing import Any

from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Room, Scored, Settled, Verdict


@dataclass(frozen=True)
class NoDraft:
    """Proposes nothing: every round settles one value."""

    def begin(self, prompt: Any, session: Any) -> "NoDraft":
        return self

    def propose(self, frontier: Draft, room: Room, noise: Noise) -> Draft:
        return frontier

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, settled: Settled) -> None:
        pass
