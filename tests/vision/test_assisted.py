"""A smaller image model as the drafter, alone and at the far end of a Jacobi window: exact for every family, and used as it is given."""

from functools import cache
from itertools import product

import pytest
import torch

import mmspec
from mmspec.core.rules.token import Token
from mmspec.vision import LlamaGen, LlamaGenConfig, Method
from mmspec.vision.codes.assisted import FarEnd
from mmspec.vision.families.llamagen import LlamaGenPictures
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.vision import small_models
from tests.vision.small_models import CASES, spread

METHODS = ("assisted", "assisted-jacobi")


def shaken(adapter, amount=0.3):
    """Change an adapter's network a little: a drafter that is often right."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in adapter.model.parameters():
            parameter += amount * parameter.std().nan_to_num() * torch.randn(parameter.shape, generator=generator)
    return adapter


@cache
def adapter_of(case):
    return CASES[case].make()


def draw(case, **options):
    return mmspec.vision.generate(adapter_of(case), CASES[case].prompts(3), guidance=2.0 if CASES[case].guided else None, **options)


@pytest.mark.parametrize("case", CASES)
def test_pictures_are_plain_decodings_for_every_family(case):
    """Three ragged rows, every pair of method, window and temperature, by a drafter that is sometimes right."""
    plain, likely = (draw(case, method="plain", seed=[4, 9, 2], temperature=heat) for heat in (1.0, 0.0))
    small = shaken(CASES[case].make())
    for number, (method, window) in enumerate(product(METHODS, (2, 7))):
        heat, wanted = ((1.0, plain), (0.0, likely))[number in (1, 2)]
        found = draw(case, method=method, drafter=small, seed=[4, 9, 2], window=window, temperature=heat)
        assert torch.equal(found.sequences, wanted.sequences)
        assert found.stats.exactness == "token-exact"
        assert 0 < found.stats.accepted < found.stats.drafted


@pytest.mark.parametrize("method", METHODS)
def test_the_target_as_its_own_drafter_is_always_right(method):
    out = draw("llamagen-caption", method=method, drafter=CASES["llamagen-caption"].make(), window=5, seed=1)
    assert out.stats.accepted == out.stats.drafted
    assert out.stats.target_calls == 4  # 16 codes, 5 a forward


def test_a_picture_does_not_depend_on_its_batch_or_on_the_others_lengths():
    adapter, small = CASES["llamagen-caption"].make(), shaken(CASES["llamagen-caption"].make())
    prompts = CASES["llamagen-caption"].prompts(3)
    for method in METHODS:
        whole = mmspec.vision.generate(adapter, prompts, small, method=method, window=6, guidance=2.0, seed=[3, 1, 7])
        for row, seed in enumerate((3, 1, 7)):
            one = {name: tensor[row : row + 1] for name, tensor in prompts.items()}
            alone = mmspec.vision.generate(adapter, one, small, method=method, window=6, guidance=2.0, seed=seed)
            assert torch.equal(whole.sequences[row], alone.sequences[0])


def test_the_far_end_is_the_small_models_and_the_rest_the_windows(monkeypatch):
    """The small model runs once for every position without a distribution, not for the whole window."""
    calls, grow = [], FarEnd.grow

    def counted(self, score, draft, budget, noise):
        before = len(calls)
        out = grow(self, lambda each: calls.append(each.size) or score(each), draft, budget, noise)
        rounds.append((len(calls) - before, self.known, out[0].size - out[0].roots))
        return out

    rounds = []
    monkeypatch.setattr(FarEnd, "grow", counted)
    case = CASES["llamagen-class"]
    mmspec.vision.generate(case.make(), case.prompts(2), shaken(case.make(), 0.6), method="assisted-jacobi", window=8, seed=3)
    assert rounds[0] == (7, 0, 7)
    assert all(ran == max(1, drafted - known) for ran, known, drafted in rounds[1:])
    assert any(known for _, known, _ in rounds)


def test_a_drafter_decides_the_method_where_none_is_given():
    case = CASES["llamagen-class"]
    plain = mmspec.vision.generate(case.make(), case.prompts(2), method="plain", seed=1)
    alone = mmspec.vision.generate(case.make(), case.prompts(2), method="jacobi", seed=1, window=6)
    for small in (case.make(), small_models.llamagen()):  # an adapter, a model
        out = mmspec.vision.generate(case.make(), case.prompts(2), small, seed=1, window=6)
        assert torch.equal(out.sequences, plain.sequences)
        assert out.stats.target_calls == 3 < alone.stats.target_calls


def test_the_models_own_assistant_is_used():
    case = CASES["llamagen-class"]
    adapter = case.make()
    with pytest.raises(ValueError, match=r"pass drafter=\.\.\., or choose a method that needs none"):
        mmspec.vision.generate(adapter, case.prompts(1), method="assisted")
    adapter.assistant = case.make()
    out = mmspec.vision.generate(adapter, case.prompts(1), method="assisted", window=4)
    assert out.stats.accepted == out.stats.drafted > 0


MISTAKES = {
    "another grid": ({"drafter": LlamaGen(LlamaGenConfig(50, 32, 1, 4, grid=5, classes=7))}, "5 x 5 cells of 50 codes"),
    "other codes": ({"drafter": LlamaGen(LlamaGenConfig(40, 32, 1, 4, grid=4, classes=7))}, "4 x 4 cells of 40 codes"),
    "no image model": ({"drafter": torch.nn.Linear(2, 2)}, "drafter is a Linear: this method drafts with an image model"),
    "a name": ({"drafter": "lookup"}, "drafter is 'lookup', which is no folder"),
    "a tree": ({"tree": (2, 1)}, "tree"),
    "an initialiser": ({"init": "left"}, "init"),
    "a rule with other noise": ({"accept": Token(), "method": "assisted-jacobi"}, "does not use the target's noise"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(mistake):
    options, words = MISTAKES[mistake]
    case = CASES["llamagen-class"]
    with pytest.raises(ValueError, match=words) as error:
        mmspec.vision.generate(case.make(), case.prompts(1), **{"drafter": case.make(), "method": "assisted", **options})
    assert "\n" not in str(error.value)


def test_a_method_of_two_kinds_is_refused():
    from mmspec.vision import METHODS as KNOWN

    with pytest.raises(ValueError, match="leave shape and rows out"):
        Method(assisted=True, rows=KNOWN["zipar"].rows)


def test_with_the_token_rule_the_distribution_is_the_targets():
    """Four codes of three values, 6000 seeds; the drafter's own distribution fails the same test."""
    sizes = {
        "vocab_size": 3,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "grid": 2,
        "classes": 2,
    }
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(LlamaGenPictures(spread(LlamaGen(LlamaGenConfig(**sizes)))))
    target, small = models
    rows = 6000
    out = mmspec.vision.generate(target, [1] * rows, small, method="assisted", accept=Token(), window=4, seed=list(range(rows)))
    assert out.stats.exactness == "distribution-exact"
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    with torch.no_grad():
        prompt = target.encode([1], guided=False)
        log_p = target.logits(target.model.states(prompt.embeds.expand(81, -1, -1), every)).log_softmax(-1)
    p = log_p.gather(-1, every[..., None])[..., 0].sum(1).exp()
    assert chi_square((out.sequences * torch.tensor([27, 9, 3, 1])).sum(1), p) > PASS
    wrong = mmspec.vision.generate(small, [1] * rows, method="plain", seed=list(range(rows)))
    assert chi_square((wrong.sequences * torch.tensor([27, 9, 3, 1])).sum(1), p) < FAIL
