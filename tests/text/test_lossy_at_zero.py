"""Lossy rules that compare how likely tokens are do so before temperature: at temperature 0 they are not idle and not unlimited.

Each rule is held to a decoder written out here from the published formulas, which knows nothing of drafts, trees or caches.
"""

import pytest
import torch

import mmspec
from mmspec.core.rules.lossy.lenience import GreedyLenience, Lenience
from mmspec.core.rules.transform import chow, contrastive, deferral, token_deferral
from mmspec.run.rules import rule_of
from tests.drafters.runs import random_prompt

NEW, DRAFT_TOKENS = 14, 3
END = 2  # Llama's end token
RULES = {
    "chow": (chow, (0.2, 0.5, 0.8)),
    "deferral": (deferral, (0.1, 0.5, 2.0)),
    "token-deferral": (token_deferral, (0.1, 0.5, 0.9)),
    "contrastive": (lambda beta: contrastive(0.1, beta), (0.2, 1.0, 3.0)),
}


def published(name: str, p: torch.Tensor, q: torch.Tensor, setting: float) -> torch.Tensor:
    """Weights of the distribution that is verified, from p and q [V] before temperature."""
    if name == "chow":  # 1 - max q <= alpha
        return q if 1 - q.max() <= setting else p
    if name == "deferral":
        return q if q.max() >= p.max() - setting * 0.5 * (p - q).abs().sum() else p
    if name == "token-deferral":
        trusted = p >= (1 - setting) * p.max()
        return q * trusted + p * q[~trusted].sum()
    score = torch.where(p >= 0.1 * p.max(), (1 + setting) * p.log() - setting * q.log(), -torch.inf)
    return score.softmax(-1)


@torch.no_grad()
def written_out(target, drafter, prompt: list[int], verified) -> list[int]:
    """Rounds of a chain of `DRAFT_TOKENS`, without a cache: token by token, each of the drafter's argmaxes judged by `verified`."""
    out: list[int] = []
    while len(out) < NEW:
        ids, kept = [*prompt, *out], True
        for _ in range(min(DRAFT_TOKENS, NEW - len(out) - 1)):
            p, q = (model(torch.tensor([ids])).logits[0, -1].double().softmax(-1) for model in (target, drafter))
            token = verified(p, q)
            ids.append(token)
            kept = token == int(q.argmax())
            if not kept:
                break
        if kept:
            ids.append(int(target(torch.tensor([ids])).logits[0, -1].argmax()))
        out = ids[len(prompt) :]
    end = out.index(END) + 1 if END in out else NEW
    return out[: min(end, NEW)]


def rows_out(out) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)]


def rows_of(inputs: dict) -> list[list[int]]:
    return [ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]


def generated(target, drafter, inputs, rule, **options):
    options = {"draft_length": DRAFT_TOKENS, "max_new_tokens": NEW} | options
    return mmspec.text.generate(target, inputs, drafter, accept=rule, **options)


@pytest.mark.parametrize("name", RULES)
def test_transforms_at_temperature_zero_give_the_argmax_of_the_published_distribution(big, small, name):
    inputs, (make, settings) = random_prompt(5, 9, 7, seed=1), RULES[name]
    found = []
    for setting in settings:
        expected = [written_out(big, small, row, lambda p, q, s=setting: int(published(name, p, q, s).argmax())) for row in rows_of(inputs)]
        out = generated(big, small, inputs, make(setting))
        assert rows_out(out) == expected, f"{name} {setting}"
        found.append(expected)
    assert len({str(each) for each in found}) > 1, "power: the setting must matter"


@pytest.mark.parametrize("name", RULES)
def test_the_drift_counts_departures_from_greedy_decoding(big, small, name):
    inputs, (make, settings) = random_prompt(9), RULES[name]
    exact = generated(big, big, inputs, make(settings[1]))
    plain = mmspec.text.generate(big, inputs, max_new_tokens=NEW)
    assert exact.sequences.tolist() == plain.sequences.tolist()  # p = q: every transform is p
    assert exact.stats.drift == 0
    assert generated(big, small, inputs, make(settings[-1])).stats.drift > 0


@pytest.mark.parametrize("lenience", [0.9, 0.3, 0.02])
def test_lenience_at_temperature_zero_compares_with_the_targets_best(big, small, lenience):
    inputs = random_prompt(5, 9, 7, seed=1)

    def verified(p, q):
        draft = int(q.argmax())
        return draft if p[draft] >= lenience * p.max() else int(p.argmax())

    expected = [written_out(big, small, row, verified) for row in rows_of(inputs)]
    assert rows_out(generated(big, small, inputs, Lenience(lenience))) == expected


def test_lenience_accepts_more_the_smaller_it_is(big, small):
    inputs = random_prompt(5, 9, 7, seed=1)
    accepted = [generated(big, small, inputs, Lenience(each)).stats.accepted for each in (1.0, 0.3, 0.01)]
    assert accepted == sorted(accepted)
    assert accepted[0] < accepted[-1]
    plain = mmspec.text.generate(big, inputs, max_new_tokens=NEW)
    assert generated(big, small, inputs, Lenience(1.0)).sequences.tolist() == plain.sequences.tolist()
    spent = generated(big, small, inputs, Lenience(0.01, budget=0))
    assert spent.sequences.tolist() == plain.sequences.tolist()


def test_lenience_says_which_rule_it_is():
    assert rule_of(Lenience(0.5, 2.0), 0.0) == GreedyLenience(0.5, 2.0)
    assert rule_of(Lenience(0.5), [0.7, 1.0]) == Lenience(0.5)
    with pytest.raises(ValueError, match="all rows temperature 0, or none"):
        rule_of("lenience", [0.0, 1.0])


@pytest.mark.parametrize("name", RULES)
def test_rows_of_unequal_temperature_are_those_of_each_alone(big, small, name):
    inputs, (make, settings), temperatures = random_prompt(5, 9, 7, seed=1), RULES[name], [0.0, 0.7, 1.3]
    batch = generated(big, small, inputs, make(settings[1]), temperature=temperatures, seed=[4, 5, 6], top_k=20)
    for row, temperature in enumerate(temperatures):
        alone = {"input_ids": torch.tensor([rows_of(inputs)[row]])}
        out = generated(big, small, alone, make(settings[1]), temperature=temperature, seed=4 + row, top_k=20)
        assert rows_out(out)[0] == rows_out(batch)[row]


@pytest.mark.parametrize("name", RULES)
def test_the_first_token_follows_the_warped_distribution(big, small, name):
    """Chi-square of the first token over many seeds, with temperature and top-k applied behind the transform."""
    (make, settings), rows, found = RULES[name], 2000, []
    setting = settings[2]
    for seed in range(12):  # the prompt at which the transform changes most
        inputs = random_prompt(6, seed=seed)
        p, q = (model(**inputs).logits[0, -1].double().softmax(-1).detach() for model in (big, small))
        found.append((float((warped(published(name, p, q, setting)) - warped(p)).abs().sum()), inputs, p, q))
    _, inputs, p, q = max(found, key=lambda each: each[0])
    many = {key: value.expand(rows, -1) for key, value in inputs.items()}
    out = generated(big, small, many, make(setting), temperature=1.6, top_k=8, max_new_tokens=2, draft_length=1)
    expected = warped(published(name, p, q, setting))
    assert p_value(out.sequences[:, 0], expected) > 1e-3
    assert p_value(out.sequences[:, 0], warped(p)) < 1e-6, "power: plain sampling would be noticed"


def warped(weights: torch.Tensor) -> torch.Tensor:
    scores = weights.log() / 1.6
    return torch.where(scores >= scores.topk(8).values[-1], scores, -torch.inf).softmax(-1)


def p_value(tokens: torch.Tensor, expected: torch.Tensor) -> float:
    from scipy.stats import chisquare

    counts, hopes = torch.bincount(tokens, minlength=len(expected)).double(), expected * len(tokens)
    if counts[expected == 0].sum() > 0:
        return 0.0
    big = hopes >= 5
    observed, wanted = torch.cat([counts[big], counts[~big].sum()[None]]), torch.cat([hopes[big], hopes[~big].sum()[None]])
    real = wanted > 0
    return float(chisquare(observed[real], wanted[real] * observed[real].sum() / wanted[real].sum()).pvalue)


def test_drafters_without_a_distribution_are_refused(big, small):
    with pytest.raises(ValueError, match="draft with a model"):
        mmspec.text.generate(
            big, {"input_ids": torch.tensor([[5, 6, 5, 6, 5, 6, 5]])}, "lookup", accept="chow", temperature=1.0, draft_length=2
        )


def test_ready_made_drafters_that_draw_otherwise_are_refused(big, small):
    from mmspec.drafters.shapes import Chain, sampled
    from tests.drafters.cascades import drafting

    with pytest.raises(ValueError, match="pass the drafter's model itself"):
        generated(big, drafting(small, Chain(sampled)), random_prompt(5), "chow")
