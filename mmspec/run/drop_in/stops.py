"""transformers' stopping criteria in a drop-in request, evaluated row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import stopping_criteria as known

from mmspec.core.stopping import Stop
from mmspec.run.drop_in.processors import vouched_for

WITHOUT_DRAFTING: dict[type, str] = {known.ConfidenceCriteria: "reads each step's scores"}
FORMS = (known.MaxLengthCriteria, known.EosTokenCriteria, known.StopStringCriteria, known.MaxTimeCriteria)


@dataclass(frozen=True, eq=False)
class RowStop:
    """A transformers criterion, called after every value of every row, in order, with that row's padded ids."""

    criterion: Any
    prompt: Tensor  # [B, P]

    def __call__(self, row: int, committed: list[int]) -> bool:
        """Return True if the criterion ends `row` after the values `committed`."""
        values = torch.tensor(committed, dtype=self.prompt.dtype, device=self.prompt.device)
        return bool(torch.as_tensor(self.criterion(torch.cat([self.prompt[row], values])[None], None)).any())


class StopTogether:
    """Ends all rows with the last one that stops, as in transformers without an end token: a row that has stopped continues.

    Rows that are ahead by then are longer; `length` is the length that transformers would return.
    """

    def __init__(self, stops: Sequence[Stop], rows: int, most: int):
        self.stops, self.most = tuple(stops), most
        self.first: list[int | None] = [None] * rows

    def __call__(self, row: int, committed: list[int]) -> bool:
        """Return True if every row has stopped and `row` is as long as the row that stopped last."""
        if self.first[row] is None and (len(committed) >= self.most or any(stop(row, committed) for stop in self.stops)):
            self.first[row] = len(committed)
        return None not in self.first and len(committed) >= self.length

    @property
    def length(self) -> int:
        """Number of values of every row's output, that of the row that stops last."""
        return max(self.most if first is None else first for first in self.first)


@dataclass(frozen=True)
class HostStops:
    """The criteria that end a request."""

    most: int  # values a row may write
    values: tuple[int, ...]  # end tokens
    stops: tuple[Stop, ...]
    together: StopTogether | None = None


def without_form(criteria: Sequence[Any], stateless: tuple[type, ...]) -> list[Any]:
    """Return the criteria that cannot be evaluated row by row: unknown ones may be stateful or read the whole batch."""
    return [one for one in criteria if type(one) not in FORMS and not vouched_for(one, stateless)]


def end_values(criteria: Sequence[Any]) -> tuple[int, ...]:
    """Return the tokens that end a row."""
    return tuple(value for one in criteria if type(one) is known.EosTokenCriteria for value in one.eos_token_id.flatten().tolist())


def ends_of(criteria: Sequence[Any], prompt: Tensor, stateless: tuple[type, ...] = (), checks: Sequence[Stop] = ()) -> HostStops:
    """Return the criteria that end a request; `checks` are evaluated before all others."""
    lengths = [one.max_length for one in criteria if type(one) is known.MaxLengthCriteria]
    if not lengths:
        raise ValueError("the generation config sets no length: give max_new_tokens or max_length")
    most = max(1, min(lengths) - prompt.shape[1])
    values, plain = end_values(criteria), (known.MaxLengthCriteria, known.EosTokenCriteria)
    stops: list[Stop] = [RowStop(one, prompt) for one in criteria if type(one) not in plain]
    padded = any(hasattr(one, "eos_token_id") for one in criteria)  # transformers' own test for filling rows that have ended
    if padded or not stops or len(prompt) == 1:
        return HostStops(most, values, (*checks, *stops))
    together = StopTogether(stops, len(prompt), most)
    return HostStops(most, values, (*checks, together), together)
