"""The sampling modes of `recommend`, end to end on a tiny Llama: the same alone or in any batch, and what transformers draws."""

import itertools

import pytest
import torch

from mmspec import recsys
from mmspec.core.rules.base import DISTRIBUTION_EXACT, TOKEN_EXACT, UNMETERED
from mmspec.recsys.catalogue import Catalogue
from tests.beam_world import make, perturbed, shop, users
from tests.oracles.statistics import FAIL, PASS, chi_square

SAMPLED = {"coupled": TOKEN_EXACT, "sample": DISTRIBUTION_EXACT, "relaxed": UNMETERED}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_coupled_gives_the_items_of_undrafted_sampling(temperature):
    model, catalogue, k = make(), shop(twins=20), 10
    histories, asked = users(catalogue, 6), {"temperature": temperature, "seed": 7}
    plain = recsys.recommend(model, histories, k=k, catalogue=catalogue, method="coupled", **asked)
    for drafter in (make(hidden=16, layers=1, seed=9), perturbed(model, 0.1), model):
        for width, length in ((k, 1), (2 * k, 3), (4 * k, "auto")):
            out = recsys.recommend(
                model, histories, k=k, catalogue=catalogue, drafter=drafter, method="coupled", width=width, draft_length=length, **asked
            )
            assert out.items == plain.items
            if drafter is model and length == "auto":
                assert out.stats.target_calls == 1
    other = recsys.recommend(model, histories, k=k, catalogue=catalogue, method="coupled", temperature=temperature, seed=8)
    assert other.items != plain.items


def test_coupled_turns_into_strict():
    model, catalogue = make(), shop()
    histories = users(catalogue, 4)
    cold = recsys.recommend(model, histories, k=10, catalogue=catalogue, drafter=perturbed(model, 0.1), method="coupled", temperature=1e-6)
    assert cold.items == recsys.recommend(model, histories, k=10, catalogue=catalogue).items


@pytest.mark.parametrize("mode", SAMPLED)
def test_alone_or_in_any_batch(mode):
    """Rows of another width beside a row, rows that end earlier, and rows that may have less."""
    model, catalogue = make(), shop()
    histories, drafter = users(catalogue, 6, seed=2), perturbed(model, 0.2)
    order = torch.rand(6, len(catalogue), generator=torch.Generator().manual_seed(0)).argsort(1)
    allowed = order < torch.tensor([len(catalogue), 3, 40, 1, 100, 12])[:, None]
    asked = {"k": 5, "catalogue": catalogue, "drafter": drafter, "mode": mode, "temperature": 1.5}
    whole = recsys.recommend(model, histories, allowed=allowed, seed=list(range(40, 46)), **asked)
    assert whole.stats.exactness == SAMPLED[mode]
    for rows in ([0], [1], [3], [5], [4, 2, 3]):
        part = recsys.recommend(model, [histories[row] for row in rows], allowed=allowed[rows], seed=[40 + row for row in rows], **asked)
        assert part.items == [whole.items[row] for row in rows]
    for row, items in enumerate(whole.items):
        may = {catalogue.items[place] for place in allowed[row].nonzero()[:, 0].tolist()}
        assert len(set(items)) == len(items)
        assert set(items) <= may
        assert whole.scores[row] == sorted(whole.scores[row], reverse=True)
        if mode != "sample":
            assert len(items) == min(5, len(may))


@pytest.mark.parametrize("mode", SAMPLED)
def test_rows_in_which_nothing_is_allowed(mode):
    model, catalogue = make(), shop()
    allowed = torch.ones(2, len(catalogue), dtype=torch.bool)
    allowed[0] = False
    out = recsys.recommend(
        model, users(catalogue, 2), k=5, catalogue=catalogue, drafter=perturbed(model, 0.1), method=mode, allowed=allowed
    )
    assert out.items[0] == []
    assert out.items[1]


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperatures_no_distribution_has(mode, temperature):
    model, catalogue = make(), shop()
    with pytest.raises(ValueError, match=r"temperature is .*give a number"):
        recsys.recommend(model, users(catalogue, 1), k=5, catalogue=catalogue, method=mode, temperature=temperature)


def test_one_level_has_the_distribution_of_transformers():
    """Of the pairs transformers draws on the last level the first K are kept: coupled's distribution, at the same temperature."""
    model, temperature, rows, codes = make(), 3.0, 4000, 4
    catalogue = Catalogue.of_codes(list(range(codes)), torch.arange(codes)[:, None], 12, 2, before=(1,))
    inputs = catalogue.inputs([[0]] * rows)
    paths = catalogue.paths[:, 0].tolist()
    with torch.no_grad():
        p = (
            model(**{name: value[:1] for name, value in inputs.items()}).logits[0, -1].double().log_softmax(-1)[paths] / temperature
        ).softmax(-1)
        torch.manual_seed(0)
        theirs = model.generate(
            **inputs,
            num_beams=2,
            num_return_sequences=2,
            do_sample=True,
            top_k=0,
            temperature=temperature,
            max_new_tokens=1,
            prefix_allowed_tokens_fn=lambda row, ids: paths,
        )
    ours = recsys.recommend(model, [[0]] * rows, k=2, catalogue=catalogue, method="coupled", temperature=temperature)
    distribution, flat = torch.zeros(16, dtype=torch.float64), torch.zeros(16, dtype=torch.float64)
    for one, other in itertools.permutations(range(codes), 2):
        distribution[(1 << one) + (1 << other)] += p[one] * p[other] / (1 - p[one])
    flat[[3, 5, 6, 9, 10, 12]] = 1 / 6
    drawn = torch.tensor([paths.index(token) for token in theirs[:, -1].tolist()]).view(rows, 2)
    for found in ((1 << drawn).sum(1), (1 << torch.tensor(ours.items)).sum(1)):
        assert chi_square(found, distribution) > PASS
        assert chi_square(found, flat) < FAIL
