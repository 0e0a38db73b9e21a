"""What a planned tree is judged by: how often each of its nodes is kept, and the seconds that its drafter takes for a level."""

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter, DraftSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Step, Verdict
from mmspec.drafters.trees.calibration import judged_nodes
from mmspec.drafters.trees.static import NodePath, Template


@dataclass
class NodeAcceptance:
    """Counts how often each node of a template is kept, given that its parent was. Pass it as `on_step` while the template drafts.

    Args:
        template: the tree that is drafted, whole or cut to its first levels.
    """

    template: Template
    hits: list[int] = field(init=False)  # by node, in the template's order
    tries: list[int] = field(init=False)

    def __post_init__(self):
        self.hits, self.tries = [0] * self.template.size, [0] * self.template.size

    def __call__(self, step: Step) -> None:
        """Count the nodes of one round."""
        for _, _, column, kept in judged_nodes(step):
            node = column - step.draft.roots
            self.tries[node] += 1
            self.hits[node] += kept

    def shares(self) -> dict[NodePath, float]:
        """Return the share of rounds in which each node was kept after its parent; nodes that were never judged are left out."""
        counted = zip(self.template.paths, self.hits, self.tries, strict=True)
        return {path: hits / tries for path, hits, tries in counted if tries}

    def on_path(self) -> dict[NodePath, float]:
        """Return the chance that each node is kept, its ancestors included: the product of `shares` along its path."""
        shares, found = self.shares(), dict[NodePath, float]({(): 1.0})
        for path in self.template.paths:
            found[path] = found[path[:-1]] * shares.get(path, 0.0)
        del found[()]
        return found


@dataclass(frozen=True)
class TimedDrafter:
    """A drafter whose rounds are timed, for costs of drafters that have no model of their own.

    Args:
        drafter: what drafts.
        seconds: gets the seconds of every round that drafted something; the draft is waited for.
    """

    drafter: Drafter
    seconds: list[float] = field(default_factory=list)

    def begin(self, prompt: Any, session: Any) -> "TimedSession":
        """Open the drafting session of one generation; see `Drafter.begin`."""
        return TimedSession(self.drafter.begin(prompt, session), self.seconds)

    def seconds_a_level(self, levels: int) -> float:
        """Return the median seconds of a level, of rounds that drafted `levels` levels.

        Raises:
            ValueError: if nothing was drafted.
        """
        if not self.seconds:
            raise ValueError("the drafter drafted nothing, so its seconds are unknown: give longer generations")
        return median(self.seconds) / levels


class TimedSession:
    """Drafting session of one generation that appends the seconds of its rounds to a list."""

    def __init__(self, session: DraftSession, seconds: list[float]):
        self.session, self.seconds = session, seconds

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        begun = perf_counter()
        draft = self.session.propose(pending, budget, noise)
        draft.parents.flatten()[-1].item()
        if draft.size > draft.roots:
            self.seconds.append(perf_counter() - begun)
        return draft

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        self.session.observe(draft, scored, verdict, committed)
