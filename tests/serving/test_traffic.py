"""200 requests of mixed lengths arrive as a Poisson process: each gets the tokens it gets alone, for less work than static batches."""

from dataclasses import dataclass

import pytest
import torch

import mmspec
from mmspec.core.decode import Step
from tests.conftest import llama
from tests.serving.traffic import Asked, poisson_traffic, scheduler_for, serve

ROWS = 8


@pytest.fixture(scope="module")
def model():
    return llama(1, seed=0)


@pytest.fixture(scope="module")
def traffic():
    return poisson_traffic(200, seed=3, between=1.2)


@dataclass
class Work:
    """Forwards of the target, and columns of all rows."""

    forwards: int = 0
    columns: int = 0


def static(model, asked: list[Asked]) -> tuple[list[list[int]], Work]:
    """The same requests in batches of `ROWS`, in order of arrival, each batch until its longest row has ended."""
    found, work = [], Work()
    for first in range(0, len(asked), ROWS):
        batch = asked[first : first + ROWS]
        longest = max(len(each.ids) for each in batch)
        most = max(each.options["max_new_tokens"] for each in batch)
        ids = torch.tensor([[0] * (longest - len(each.ids)) + each.ids for each in batch])
        mask = torch.tensor([[0] * (longest - len(each.ids)) + [1] * len(each.ids) for each in batch])
        work.columns += len(batch) * (longest - 1)

        def note(step: Step, rows: int = len(batch)) -> None:
            work.forwards += 1
            work.columns += rows * step.draft.size

        limits = [each.options["max_new_tokens"] for each in batch]
        out = mmspec.text.generate(
            model,
            {"input_ids": ids, "attention_mask": mask},
            max_new_tokens=most,
            stops=[lambda row, values, limits=limits: len(values) >= limits[row]],
            temperature=[each.options["temperature"] for each in batch],
            seed=[each.options["seed"] for each in batch],
            on_step=note,
        )
        found += [row[:length].tolist() for row, length in zip(out.tokens, out.lengths, strict=True)]
    return found, work


def test_200_requests_get_their_own_tokens_for_less_work_than_static_batches(model, traffic):
    scheduler, waiting = scheduler_for(model, max_rows=ROWS)
    handles = serve(scheduler, waiting, traffic)
    assert [handle.result(0).tokens[0].tolist() for handle in handles] == [each.alone(model) for each in traffic]
    counts = scheduler.counts
    assert counts.finished == len(traffic)
    assert counts.tokens == sum(len(handle.tokens) for handle in handles)
    same = [Asked(each.ids, {k: v for k, v in each.options.items() if k not in ("top_k", "top_p")}, each.arrives) for each in traffic]
    _, work = static(model, same)  # one truncation a batch is all that a static batch takes; its work does not depend on it
    assert work.forwards >= 1.5 * counts.forwards
    assert work.columns >= 1.5 * counts.columns


def test_a_static_batch_gives_the_same_tokens(model, traffic):
    """The comparison is with the same work."""
    same = [Asked(each.ids, {k: v for k, v in each.options.items() if k not in ("top_k", "top_p")}) for each in traffic[:16]]
    found, _ = static(model, same)
    assert found == [each.alone(model) for each in same]


def test_all_at_once_with_a_drafter(model, traffic):
    """All 40 requests wait from the start, so that prompts of several begin together."""
    asked = [Asked(each.ids, each.options) for each in traffic[:40]]
    scheduler, waiting = scheduler_for(model, "lookup", max_rows=ROWS, piece=32)
    handles = serve(scheduler, waiting, asked)
    assert [handle.tokens for handle in handles] == [each.alone(model) for each in asked]


def test_the_draft_length_is_chosen_by_the_number_of_rows(model, traffic):
    """A controller of its own measures every class of row counts."""
    asked = [Asked(each.ids, each.options, 3 * place) for place, each in enumerate(traffic[:20])]
    scheduler, waiting = scheduler_for(model, llama(1, seed=0), max_rows=4)
    handles = serve(scheduler, waiting, asked)
    assert [handle.tokens for handle in handles] == [each.alone(model) for each in asked]
    assert len(scheduler.controller.sessions) > 1  # pyright: ignore[reportAttributeAccessIssue]
