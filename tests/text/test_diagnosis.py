"""What diagnoses say, held to counts made by hand, to a model's own forwards and to drafters that are blind on purpose."""

import copy
import json
from math import comb, log

import pytest
import torch
from torch.nn.functional import log_softmax

from mmspec.bench.diagnosis import Swapped, WrongPicture, break_even, counted, diagnose, own_drafter, swapped, wrong_picture
from mmspec.bench.kinds import JudgedToken, Kinds, TokenKinds, kinds_of_gain, kinds_of_tokens, kinds_of_words, picture_gain
from mmspec.core.records import Committed, Draft, Step, Verdict
from mmspec.drafters.model.ensemble import Views
from mmspec.drafters.views.base import same_prompt, shared_modalities, text_alone
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.text import generate
from tests.drafters.runs import random_prompt
from tests.families import build
from tests.seeing import SIGHTS, seen

NEW = 16
ALL_KINDS = ("LLaVA", "Qwen3-VL", "Mllama")  # features in the prompt, and behind inner layers; pictures beside the prompt


def alike(name):
    """Four requests whose pictures have one size."""
    parts = [seen(name, pictures=(1,), seed=seed) for seed in range(4)]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


@pytest.fixture(scope="module", params=ALL_KINDS)
def world(request):
    """A family's model that looks hard, a small drafter of the same family, and four alike requests."""
    model = build(SIGHTS[request.param].case)
    model.generation_config.eos_token_id = None
    return request.param, model, alike(request.param)


def step(values, accepted, drafted, height=4, seconds=None):
    """A round of `height` draft tokens, as far as the host sees it."""
    rows = len(values)
    draft = Draft(torch.zeros(rows, height + 1, dtype=torch.long), torch.zeros(rows, height + 1, dtype=torch.long), torch.zeros(rows))
    judged = [min(a + 1, d) for a, d in zip(accepted, drafted, strict=True)]
    committed = Committed(values, accepted, judged, drafted, [False] * rows, [True] * rows, [0.0] * rows, [0.0] * rows)
    return Step(draft, Verdict(*[torch.zeros(0)] * 3, draft, torch.zeros(0), torch.zeros(0)), committed, seconds or {"total": 1.0})


# --- by kind ----------------------------------------------------------------------------------------------------------


def scripted():
    rounds = TokenKinds()
    rounds(step([[1, 2, 3], [7]], [2, 0], [4, 4], seconds={"encode": 1.0, "prefill": 2.0, "draft_prefill": 4.0, "total": 8.0}))
    rounds(step([[4, 5, 1, 2, 3], [7, 7]], [4, 1], [4, 1]))  # all four and the bonus; the only draft token and the bonus
    rounds(step([[6], []], [0, 0], [0, 0], height=0))  # nobody drafted, and a row that has ended
    return rounds


def test_every_judged_draft_token_is_counted_once():
    rounds = scripted()
    first = [JudgedToken(0, 0, 0, True), JudgedToken(0, 1, 1, True), JudgedToken(0, 2, 2, False), JudgedToken(1, 0, 0, False)]
    second = [*(JudgedToken(0, 3 + d, d, True) for d in range(4)), JudgedToken(1, 1, 0, True)]
    assert rounds.judged == first + second
    assert (rounds.calls, rounds.said) == ([3, 2], [9, 3])
    assert rounds.steps == [(True, 1.0), (False, 1.0)]


def test_draft_tokens_belong_to_the_token_that_was_committed():
    rounds, kinds = scripted(), Kinds()
    rows = [[1, 2, 3, 4, 5, 1, 2, 3, 6], [7, 7, 7]]
    kinds.add(rounds.judged, kinds_of_tokens(rows, lambda token: "odd" if token % 2 else "even"))
    found = kinds.to_dict()
    assert found["odd"] == {
        "drafted": 6,
        "accepted": 4,
        "acceptance": 4 / 6,
        "drafted_by_position": [3, 1, 2],
        "accepted_by_position": [2, 1, 1],
    }
    assert found["even"]["drafted_by_position"] == [1, 1, 0, 1]
    assert found["even"]["accepted"] == 3
    assert sum(kind["drafted"] for kind in found.values()) == len(rounds.judged)
    assert json.loads(json.dumps(found)) == found
    assert "| odd | 6 | 4 | 67% | 67% 100% 50% |" in kinds.table()
    assert "| even | 3 | 3 | 100% | 100% 100% - 100% |" in kinds.table()


def test_counts_agree_with_the_statistics(big, small):
    rounds = TokenKinds()
    out = generate(big, random_prompt(5, 9, 7, seed=1), small, draft_length=4, max_new_tokens=30, on_step=rounds)
    kinds = Kinds()
    kinds.add(rounds.judged, kinds_of_tokens(out.sequences.tolist(), str))
    found = kinds.to_dict().values()
    assert sum(kind["accepted"] for kind in found) == out.stats.accepted
    assert sum(kind["drafted"] for kind in found) == out.stats.judged == len(rounds.judged)
    assert sum(rounds.calls) == out.stats.row_calls


class Letters:
    """A tokenizer whose tokens are pieces of words."""

    def decode(self, ids, skip_special_tokens=True):
        return "".join(("a ", "re", "d", " squ", "are", ".", " Red", "<end>")[i] for i in ids if i != 7)


def test_kinds_of_words_reach_all_their_tokens():
    rows, words = [[0, 1, 2, 3, 4, 5, 6, 7], [3]], {"red": "colour", "square": "shape"}
    expected = [["other", "colour", "colour", "shape", "shape", "other", "colour", "other"], ["other"]]
    assert kinds_of_words(rows, Letters(), words) == expected
    by_order = kinds_of_words(rows[:1], Letters(), lambda names: [f"{place} {name}" for place, name in enumerate(names)])
    assert by_order == [["0 a", "1 red", "1 red", "2 square", "2 square", "other", "3 red", "other"]]


def test_what_a_picture_gives_is_the_difference_of_two_forwards():
    model, inputs = build(SIGHTS["LLaVA"].case), seen("LLaVA", pictures=(1, 2, 1))
    rows = [[5, 9, 11, 4], [8], [7, 6]]
    gains = picture_gain(model, inputs, rows)
    assert [len(line) for line in gains] == [4, 1, 2]
    for row, said in enumerate(rows):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()]
        pixels = inputs["pixel_values"][((0,), (1, 2), (3,))[row],]
        whole = torch.cat([ids, torch.tensor(said)])[None]
        words = text_alone({name: value[row : row + 1] for name, value in inputs.items() if name != "pixel_values"}, session_of(model))
        bare = torch.cat([words["input_ids"][words["attention_mask"].bool()], torch.tensor(said)])[None]
        with torch.no_grad():
            told = [model(input_ids=whole, pixel_values=pixels).logits, model(input_ids=bare).logits]
        value = torch.tensor(said)[:, None]
        one, other = (log_softmax(logits[0, -len(said) - 1 : -1], -1).gather(1, value)[:, 0] for logits in told)
        assert torch.allclose(torch.tensor(gains[row]), one - other, atol=2e-4)
    assert kinds_of_gain([[log(2), 0.5, -1.0]]) == [["seen", "told", "told"]]


def session_of(model):
    class Opened:
        target = HFTarget(model, family_of(model))

    return Opened()


# --- the wrong picture ------------------------------------------------------------------------------------------------


def test_features_change_places_as_pictures_do(world):
    """What a drafter that looks again sees of turned pictures is what turned features show it."""
    _, model, inputs = world
    drafter = copy.deepcopy(model)  # the same weights, and not known to be the same: it looks for itself
    plain = {"draft_length": 3, "max_new_tokens": NEW}
    again, shared = (
        wrong_picture(model, inputs, one, view=view, **plain) for one, view in ((drafter, same_prompt), (model, shared_modalities))
    )
    assert again == shared
    assert again.tokens == 4 * NEW
    assert again.calls == 4 * NEW // 4  # with the right picture it is the target


def test_a_drafter_that_sees_is_told_from_one_that_does_not(world):
    _, model, inputs = world
    assert wrong_picture(model, inputs, copy.deepcopy(model), max_new_tokens=NEW).wrong_calls > 4 * NEW // 6
    blind = wrong_picture(model, inputs, copy.deepcopy(model), view="drop", max_new_tokens=NEW)
    assert (blind.changed, blind.same, blind.verdict()) == (0, 4, "blind")
    assert blind.calls == blind.wrong_calls


def test_a_planted_blind_drafter_is_caught(world):
    """Published assistants lose their pixels on the way. Here they are blanked: outputs are the same, and only these tests tell."""
    _, model, inputs = world

    def blinded(prompt, session):
        return {name: torch.zeros_like(value) if name == "pixel_values" else value for name, value in prompt.items()}

    found = wrong_picture(model, inputs, copy.deepcopy(model), view=blinded, max_new_tokens=NEW)
    assert found.verdict() == "blind"
    assert found.tokens / found.calls < 6


def test_the_sign_test_is_exact():
    assert WrongPicture(more=8, fewer=0, same=3, changed=8).p_value == 2**-8
    found = WrongPicture(more=7, fewer=2, same=0, changed=9)
    assert found.p_value == sum(comb(9, k) for k in (7, 8, 9)) / 2**9
    assert (found.verdict(), found.verdict(level=0.1)) == ("unclear", "sees")
    assert WrongPicture(same=5, changed=1).verdict() == "unclear"
    assert WrongPicture(1, 2, 3, 4, 50, 20, 25) + WrongPicture(1, 0, 0, 1, 10, 5, 5) == WrongPicture(2, 2, 3, 5, 60, 25, 30)
    told = WrongPicture(1, 0, 0, 1, 12, 3, 4).to_dict()
    assert (told["tokens_per_call"], told["wrong_tokens_per_call"], told["p_value"]) == (4, 3, 0.5)


def test_all_views_of_an_ensemble_change_places():
    both = swapped(Views((same_prompt, text_alone)))
    assert both.views == (Swapped(same_prompt), Swapped(text_alone))
    model, ragged = build(SIGHTS["LLaVA"].case), seen("LLaVA", pictures=(1, 1, 1, 1))
    found = wrong_picture(model, ragged, copy.deepcopy(model), view=("own", "drop"), max_new_tokens=NEW)
    assert found.more + found.fewer + found.same == 4
    assert found.changed > 0


def test_rows_that_are_not_alike_are_refused():
    model = build(SIGHTS["LLaVA"].case)
    for pictures in ((1, 2), (1,)):
        with pytest.raises(ValueError, match="give two requests or more with the same number of pictures, all of one size"):
            wrong_picture(model, seen("LLaVA", pictures=pictures), copy.deepcopy(model), max_new_tokens=4)


# --- the target's own draft tokens, seconds and forwards -------------------------------------------------------------------


def test_a_target_drafts_for_itself(world):
    _, model, inputs = world
    found = own_drafter(model, inputs, draft_length=3, max_new_tokens=14)
    assert found | {"tokens_per_call": None} == {
        "rows": 4,
        "whole": 4,
        "calls": 16,  # 14 tokens are four calls of at most four
        "fewest_calls": 16,
        "tokens_per_call": None,
        "passed": True,
    }


def test_break_even_by_hand():
    plain, drafted = [(False, 2.0), (False, 1.0), (False, 9.0)], [(True, 6.0), (False, 1.0), (True, 6.0)]
    assert break_even(plain, drafted, start=10.0, tau=4.0) == {"needed": 3.0, "pays": True, "earned_after": 20.0}
    assert break_even(plain, drafted, start=10.0, tau=2.0) == {"needed": 3.0, "pays": False, "earned_after": None}
    assert break_even([], drafted, 1.0, 2.0)["needed"] is None


def test_a_diagnosis_is_ready_for_json(world):
    _, model, inputs = world
    small, kinds = copy.deepcopy(model), {str(token): "low" if token < 30 else "high" for token in range(60)}
    found, words, vision = diagnose(model, [inputs, inputs], small, Numbers(), kinds, draft_length=3, max_new_tokens=NEW)
    assert json.loads(json.dumps(found)) == found
    assert (found["tokens"], found["target_calls"], found["tokens_per_call"], found["exactness"]) == (8 * NEW, 8, 4, "token-exact")
    assert found["drafter_tower_runs"] == 2
    assert found["break_even"]["needed"] > 0
    assert sum(each["drafted"] for each in found["by_word"].values()) == found["judged"] == sum(sum(d) for d in vision.drafted.values())
    assert set(words.drafted) <= {"low", "high"}
    assert found["wrong_picture"]["changed"] == 8


class Numbers:
    """A tokenizer whose words are ids."""

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(map(str, ids))


def test_forwards_are_counted_and_nothing_stays():
    model, inputs = build(SIGHTS["LLaVA"].case), seen("LLaVA", pictures=(1, 2, 1))
    generate(model, inputs, max_new_tokens=1)
    hooks = sum(len(module._forward_hooks) for module in model.modules())  # transformers has some of its own
    with counted(model) as counts:
        out = generate(model, inputs, max_new_tokens=6)
    assert counts == {"decoder": out.stats.target_calls, "tower": 1}
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks
