"""`plain` and `strict` give the very items of transformers' constrained beam search, in its order and with its scores, whoever drafts."""

import pytest
import torch
from transformers import BatchEncoding

from mmspec import recsys
from tests.beam_world import FAMILIES, LEVELS, gaps, make, perturbed, shop, target_of, transformers_beams, users

KS = (1, 5, 10, 20, 50)
TIE = 1e-5  # paths whose scores are nearer than this are ranked by the order of additions
CLOSE = 1e-4


def drafters(model, family):
    """From useless to perfect, by name."""
    return {
        "stranger": make(family, hidden=16, layers=1, seed=9),
        "poor": perturbed(model, 0.5),
        "good": perturbed(model, 0.05),
        "itself": model,
    }


def plans(k, models):
    """(mode, drafter, width, draft length): two without drafting, then every drafter; over all k every pair of these meets."""
    found, turn = [("plain", None, None, "auto"), ("strict", None, None, "auto")], KS.index(k)
    widths, lengths = (1, 2, 4) if k < 50 else (1, 2), ("auto", 1, 2, 3)
    for number, name in enumerate(models):
        found.append(("strict", name, widths[(number + turn) % len(widths)] * k, lengths[(number + 3 * turn) % len(lengths)]))
    return found


def test_every_pair_of_settings_is_among_the_plans():
    models = drafters(make("llama"), "llama")
    found = [(k, name, width // k, length) for k in KS for _, name, width, length in plans(k, models)[2:]]
    for one, other, count in ((0, 1, 20), (1, 2, 12), (1, 3, 16), (0, 3, 20), (0, 2, 14), (2, 3, 12)):
        assert len({(plan[one], plan[other]) for plan in found}) == count, (one, other)


def expected(catalogue, beams, k):
    """A ranking of paths as at most k items: several items of a path in the catalogue's order."""
    rows = [catalogue.paths.eq(torch.tensor(path)).all(1).nonzero()[:, 0].tolist() for path, _ in beams]
    pairs = [(catalogue.items[row], score) for found, (_, score) in zip(rows, beams, strict=True) for row in found]
    return [item for item, _ in pairs][:k], [score for _, score in pairs][:k]


def compare(out, catalogue, beams, k, rows, case):
    """How many rows were the same: all of `rows`, or an AssertionError that names the first that was not."""
    for row in rows:
        items, scores = expected(catalogue, beams[row], k)
        assert out.items[row] == items, f"{case}, row {row}"
        assert out.scores[row] == pytest.approx(scores, abs=CLOSE), f"{case}, row {row}"
        count = int(out.counts[row])
        assert [tuple(path) for path in out.paths[row, :count].tolist()] == [path for path, _ in beams[row]], f"{case}, row {row}"
    return len(rows)


def test_the_very_items_of_transformers():
    """Every row is a case: a user, k, a width, a draft length and a drafter. Rows with a near-tie are left out, and are few."""
    cases = left_out = 0
    for family in FAMILIES:
        model, catalogue = make(family), shop(twins=20)
        histories = users(catalogue, 10)
        inputs, models = catalogue.inputs(histories), drafters(model, family)
        for k in KS:
            beams = transformers_beams(model, inputs, catalogue, k)
            rows = (gaps(target_of(model, catalogue.trie), inputs, k) > TIE).nonzero()[:, 0].tolist()
            for mode, name, width, length in plans(k, models):
                drafter = None if name is None else models[name]
                out = recsys.recommend(
                    model, histories, k=k, catalogue=catalogue, drafter=drafter, method=mode, width=width, draft_length=length
                )
                case = f"{family}, k={k}, {mode}, {name}, width={width}, draft_length={length}"
                cases += compare(out, catalogue, beams, k, rows, case)
                left_out += len(histories) - len(rows)
                assert out.stats.row_calls <= LEVELS * len(histories), case
    assert cases >= 1000
    assert left_out <= cases / 50


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_batches_and_padding(family):
    """Alone, in threes, in eights; padded on either side; prompts as a tokenizer hands them out."""
    model, catalogue = make(family), shop()
    histories, k = users(catalogue, 8, seed=3), 10
    drafter, beams = perturbed(model, 0.1), transformers_beams(model, catalogue.inputs(histories), catalogue, k)
    cases = 0
    for size in (1, 3, 8):
        for begin in range(0, 8, size):
            rows = range(begin, min(begin + size, 8))
            part = [histories[row] for row in rows]
            for inputs in (part, right_padded(catalogue, part), BatchEncoding(catalogue.inputs(part))):
                for mode, proposer in (("plain", None), ("strict", drafter)):
                    out = recsys.recommend(model, inputs, k=k, catalogue=catalogue, drafter=proposer, method=mode)
                    cases += compare(out, catalogue, beams[begin:], k, range(len(part)), f"{size} rows from {begin}, {mode}")
    assert cases == 8 * 3 * 3 * 2


def right_padded(catalogue, histories):
    lines = [catalogue.tokens(history) for history in histories]
    longest = max(map(len, lines)) + 2  # as padding to a multiple does
    ids = torch.tensor([line + [7] * (longest - len(line)) for line in lines])
    mask = torch.tensor([[1] * len(line) + [0] * (longest - len(line)) for line in lines])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("k", [1, 5, 20])
def test_catalogues_that_allow_little(family, k):
    """Other items for every row, from one item to all: fewer than k where there are fewer."""
    model, catalogue = make(family), shop()
    histories = users(catalogue, 8, seed=5)
    inputs, generator = catalogue.inputs(histories), torch.Generator().manual_seed(0)
    many = torch.tensor([1, 2, 3, 6, 12, 30, 100, len(catalogue)])
    order = torch.rand(8, len(catalogue), generator=generator).argsort(1)
    allowed = order < many[:, None]
    beams = transformers_beams(model, inputs, catalogue, k, allowed)
    assert [len(line) for line in beams] == many.clamp(max=k).tolist()
    for mode, drafter in (("plain", None), ("strict", make(family, 16, 1, seed=9)), ("strict", perturbed(model, 0.1)), ("strict", model)):
        out = recsys.recommend(model, histories, k=k, catalogue=catalogue, drafter=drafter, method=mode, allowed=allowed)
        compare(out, catalogue, beams, k, range(8), f"k={k}, {mode}")
        if drafter is model:
            assert out.stats.target_calls == 1


def test_one_mask_for_all_rows():
    model, catalogue = make(), shop(twins=30)
    histories = users(catalogue, 3)
    one = catalogue.mask(catalogue.items[::7])
    beams = transformers_beams(model, catalogue.inputs(histories), catalogue, 10, one)
    out = recsys.recommend(model, histories, k=10, catalogue=catalogue, drafter=perturbed(model, 0.1), allowed=one)
    allowed = set(catalogue.items[::7])
    for row, line in enumerate(beams):
        assert [tuple(path) for path in out.paths[row, : out.counts[row]].tolist()] == [path for path, _ in line]
        assert out.items[row]
        assert set(out.items[row]) <= allowed


def test_nothing_allowed_is_nothing_recommended():
    """transformers raises on an empty list: here the row is empty, and its neighbour is as ever."""
    model, catalogue = make(), shop()
    histories = users(catalogue, 2)
    allowed = torch.stack([torch.zeros(len(catalogue), dtype=torch.bool), torch.ones(len(catalogue), dtype=torch.bool)])
    whole = recsys.recommend(model, histories, k=5, catalogue=catalogue)
    for drafter in (None, perturbed(model, 0.1)):
        out = recsys.recommend(model, histories, k=5, catalogue=catalogue, drafter=drafter, allowed=allowed)
        assert out.items[0] == out.scores[0] == []
        assert out.counts.tolist() == [0, 5]
        assert not out.paths[0].any()
        assert out.items[1] == whole.items[1]


def test_a_catalogue_of_one_item():
    model, catalogue = make(), shop(1)
    for drafter in (None, model):
        out = recsys.recommend(model, [["item0"]], k=5, catalogue=catalogue, drafter=drafter)
        assert out.items == [["item0"]]
