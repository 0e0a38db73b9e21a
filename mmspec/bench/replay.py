"""Replays drafters and draft lengths on recorded texts, without a model: deterministic counts, and seconds by a given cost curve.

Under greedy decoding a draft token is accepted where it equals the recorded continuation, so a recorded text tells what any drafter and
any controller would have done on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmspec.core.control import Control, next_length
from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter
from mmspec.core.records import Committed, Draft
from mmspec.core.stopping import DefaultStopping

Cost = Callable[[int], float]
"""Seconds of a forward, by the number of columns it scores."""


@dataclass(frozen=True)
class Replayed:
    """Counts of one replayed text.

    Args:
        tokens: tokens committed.
        columns: columns scored, by round; the prompt's are not counted.
        seconds: seconds of all rounds.
    """

    tokens: int
    columns: tuple[int, ...]
    seconds: float

    @property
    def tokens_per_call(self) -> float:
        """Tokens committed a forward."""
        return self.tokens / len(self.columns)


def replay(prompt: Sequence[int], output: Sequence[int], drafter: Drafter, control: Control, cost: Cost) -> Replayed:
    """Replay one recorded greedy generation.

    Args:
        prompt: token ids of the prompt.
        output: token ids that the model generated, at least 1.
        drafter: a drafter that reads token ids only.
        control: the draft length.
        cost: seconds by columns.

    Returns:
        The counts.
    """
    session: Any = drafter.begin({"input_ids": torch.tensor([list(prompt)])}, None)  # type: ignore[arg-type]
    controller: Any = control.begin()
    noise, done = Noise.from_seed(0, 1), 0
    columns: list[int] = []
    while done < len(output):
        pending = Draft.root(torch.tensor([output[done - 1] if done else prompt[-1]]), torch.tensor([done]))
        stopping = DefaultStopping(1, len(output) - done)
        length = next_length(controller, session, pending, stopping)
        draft = session.propose(pending, stopping.budget(length), noise)
        drafted = draft.nodes[0, 1:][draft.valid[0, 1:]].tolist()
        accepted = next((n for n, token in enumerate(drafted) if token != output[done + n]), len(drafted))
        committed = _committed(list(output[done : done + accepted + 1]), accepted, len(drafted))
        session.observe(None, None, None, committed)
        controller.observe(length, committed, cost(draft.size))
        columns.append(draft.size)
        done += accepted + 1
    return Replayed(len(output), tuple(columns), sum(map(cost, columns)))


def _committed(values: list[int], accepted: int, drafted: int) -> Committed:
    judged = min(accepted + 1, drafted)
    return Committed([values], [accepted], [judged], [drafted], [False], [True], [0.0], [0.0])
