"""Every architecture that docs/families.md calls exact as a drafter with fewer positions than its target, past its end: the text is plain
decoding's.

Whether a class has an end is asked of the class: its own forward, without a cache, of more columns than its config names positions. One
that has an end drafts up to it; one that has none (computed rotary, relative bias, states) drafts on.
"""

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import mmspec
from mmspec.models.compat import generation_positions
from tests.sweep import causal, seq2seq
from tests.sweep.case import Case, padded, text_row
from tests.sweep.page import PAGE, read
from tests.sweep.run import EXACT, OverTime, one_line, within
from tests.sweep.shrink import PLACES, SIZES, perturbed

SHORT, NEW, LIMIT = 24, 30, 180
LENGTHS = (3, 14, SHORT + 6)  # of causal prompts; the last is too long for the drafter


def cases(name: str | None = None) -> list[Case]:
    """The causal and text-to-text classes that the page calls exact, whose model type matches a regular expression. Ropes that follow the
    positions of the config end all generations there: left out.
    """
    exact = {(row.kind, row.name) for row in read(PAGE) if row.outcome.startswith(EXACT) and "dynamic rope" not in row.name}
    every = [*causal.cases(), *seq2seq.cases()]
    return [case for case in every if (case.kind, case.name) in exact and (name is None or re.search(name, case.name))]


def short(case: Case) -> Any:
    """The model of a case with `SHORT` positions, its weights changed a little."""
    with patch.dict(SIZES, dict.fromkeys(PLACES, SHORT)):
        return perturbed(case.make())


@torch.no_grad()
def has_an_end(model: Any) -> bool:
    """Whether the class's own forward fails for more columns than `SHORT`."""
    ids = torch.full((1, SHORT + 2), 5)
    try:
        if model.config.is_encoder_decoder:
            model(input_ids=ids[:, :9], decoder_input_ids=ids, use_cache=False)
        else:
            model(input_ids=ids, use_cache=False, **generation_positions(model, ids))
    except Exception:
        return True
    return False


def prompts(case: Case, model: Any) -> dict[str, Tensor]:
    """Three rows: of a causal model the last one is too long for the drafter."""
    if model.config.is_encoder_decoder:
        return dict(case.batch(model, 3))
    return padded([text_row(row, causal.LAST, lengths=LENGTHS, first=causal.FIRST) for row in range(3)])


def outcome(case: Case) -> str:
    """ "right" and whether drafting ends, or in one line what is wrong."""
    target, drafter = case.make(), short(case)
    inputs, ends = prompts(case, target), has_an_end(drafter)
    lengths = [1] * 3 if target.config.is_encoder_decoder else inputs["attention_mask"].sum(1).tolist()
    rounds: list[tuple[int, int, int]] = []  # row, position of the pending token, draft tokens

    def note(step: Any) -> None:
        for row, values in enumerate(step.committed.values):
            if values:
                rounds.append((row, lengths[row] - 1, step.committed.drafted[row]))
                lengths[row] += len(values)

    plain = mmspec.text.generate(target, inputs, max_new_tokens=NEW)
    found = mmspec.text.generate(target, inputs, drafter, draft_length=4, max_new_tokens=NEW, on_step=note)
    if found.tokens.tolist() != plain.tokens.tolist():
        return "WRONG: other tokens than plain decoding"
    if not any(drafted for row, at, drafted in rounds if row == 0 and at < SHORT):
        return "WRONG: nothing is drafted before the end"
    if any(drafted and at + drafted >= SHORT for _, at, drafted in rounds):
        return f"right, goes on{', as its own forward does not' * ends}"  # what it reads by position is computed in its place (MPT)
    return f"right, ends{', though its own forward goes on' * (not ends)}"


def check_positions(name: str | None, progress: Callable[[str], None]) -> int:
    """Examine every class. Returns 1 if one is wrong."""
    wrong = 0
    for case in cases(name):
        try:
            with within(LIMIT):
                found = outcome(case)
        except OverTime:
            found = f"took more than {LIMIT} s"
        except Exception as error:
            found = f"WRONG: {type(error).__name__}: {one_line(error)}"
        wrong += not found.startswith("right")
        progress(f"{case.kind:8} {case.name:32} {found}")
    progress(f"{wrong} wrong")
    return int(wrong > 0)
