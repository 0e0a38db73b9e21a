"""Losses are what their names say, by hand on small distributions, and are least where the drafter says what the target says."""

import math

import pytest
import torch

from mmspec.train.losses import LOSSES, strict_alignment, weighted_loss

P = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]], dtype=torch.double)
Q = torch.tensor([[0.5, 0.4, 0.1], [0.6, 0.3, 0.1]], dtype=torch.double)
VALUE = torch.tensor([1, -1])


def by_hand(name):
    kl = lambda a, b: (a * (a / b).log()).sum(-1)  # noqa: E731
    middle = (P + Q) / 2
    return {
        "ce": torch.stack([-Q[0, 1].log(), torch.zeros(())]).double(),
        "kl": kl(P, Q),
        "soft-kl": 4 * kl(P.sqrt() / P.sqrt().sum(-1, keepdim=True), Q.sqrt() / Q.sqrt().sum(-1, keepdim=True)),
        "reverse-kl": kl(Q, P),
        "jsd": 0.5 * (kl(P, middle) + kl(Q, middle)),
        "tv": 1 - torch.minimum(P, Q).sum(-1),
        "top-k": -(P * Q.log()).sum(-1),
        "atspeed-s": kl(Q, P) - torch.tensor([0.1, 0.3]) * (Q * Q.log()).sum(-1),  # q is least where p is 0.1, and 0.3
        "atspeed-s-renormalised": kl(Q, P) - torch.tensor([0.1, 0.3]) * (Q * Q.log()).sum(-1),
        "atspeed-r": 1 - torch.minimum(P, Q).sum(-1),
    }[name]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula(name):
    assert torch.allclose(LOSSES[name](P.log(), Q.log(), VALUE), by_hand(name), atol=1e-7)


def test_strict_alignment_by_hand_on_a_short_list():
    """q's two likeliest of three are values 0 and 1, then 0 and 1 again; p of the second is 0.2, then 0.5."""
    found = strict_alignment(P.log(), Q.log(), VALUE, k=2)
    first = 0.5 * math.log(0.5 / 0.7) + 0.4 * math.log(0.4 / 0.2) - 0.2 * (0.5 * math.log(0.5) + 0.4 * math.log(0.4))
    second = 0.6 * math.log(0.6 / 0.2) + 0.3 * math.log(0.3 / 0.5) - 0.5 * (0.6 * math.log(0.6) + 0.3 * math.log(0.3))
    assert found.tolist() == pytest.approx([first, second])
    found = strict_alignment(P.log(), Q.log(), VALUE, k=2, renormalised=True)
    a, b, p = 5 / 9, 4 / 9, (7 / 9, 2 / 9)
    first = a * math.log(a / p[0]) + b * math.log(b / p[1]) - p[1] * (a * math.log(a) + b * math.log(b))
    assert found[0].item() == pytest.approx(first)


def test_strict_alignment_draws_mass_together_where_the_target_likes_the_end_of_the_list():
    """With p flat the reverse KL is q's negentropy and p of the last is 1/4, so 3/4 of the pull to flatness is left; drop the sign and
    it is 5/4."""
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.double)
    logits, flat = q.log().requires_grad_(), torch.full((4,), 0.25, dtype=torch.double).log()
    whole = torch.autograd.grad(strict_alignment(flat, logits.log_softmax(-1), VALUE), logits)[0]
    pull = torch.autograd.grad(LOSSES["reverse-kl"](flat, logits.log_softmax(-1), VALUE), logits)[0]
    assert torch.allclose(whole, 0.75 * pull)
    assert pull[0] > 0  # descent takes mass from the likeliest


def test_mass_outside_the_list_is_free_unless_renormalised():
    """Why strict alignment is mixed with another loss: of a distribution over the list alone, e times less mass there is cheaper."""
    distribution = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.double)
    logits = torch.tensor([0.5, 0.3, 0.15 + 0.04, 0.01], dtype=torch.double).log().requires_grad_()
    step = lambda **how: torch.autograd.grad(strict_alignment(distribution.log(), logits.log_softmax(-1), VALUE, k=3, **how), logits)[0][3]  # noqa: E731
    assert step() < 0  # descent moves mass to the value outside the list
    assert step(renormalised=True).abs() < 1e-12


@pytest.mark.parametrize("name", LOSSES)
def test_what_may_not_come_counts_for_nothing(name):
    """Distributions of three values out of five, the others at -inf: the loss and the gradients of the three are those of the three
    alone."""
    place = torch.tensor([1, 2, 4])
    alone = Q.log().clone().requires_grad_()
    wide = torch.full((2, 5), -3.0, dtype=torch.double)
    wide[:, place] = Q.log()
    wide = wide.requires_grad_()
    seen = torch.zeros(5, dtype=torch.bool).index_fill(0, place, True)
    log_p = torch.full((2, 5), -torch.inf, dtype=torch.double).index_copy(1, place, P.log())
    value = torch.tensor([2, -1])
    found = LOSSES[name](log_p, wide.masked_fill(~seen, -torch.inf).log_softmax(-1), value)
    wanted = LOSSES[name](P.log(), alone.log_softmax(-1), VALUE)
    if name.startswith("atspeed-s"):  # three values may come and the list holds twenty: it has no last value
        wanted = LOSSES["reverse-kl"](P.log(), alone.log_softmax(-1), VALUE)
    assert torch.allclose(found, wanted)
    (grad,), (goal,) = torch.autograd.grad(found.sum(), wide), torch.autograd.grad(wanted.sum(), alone)
    assert torch.allclose(grad[:, place], goal)
    assert (grad[:, ~seen] == 0).all()


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "ce" and not name.startswith("atspeed-s")])
def test_a_loss_is_least_at_the_targets_distribution(name):
    logits = torch.nn.Parameter(Q.log().clone())
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        LOSSES[name](P.log(), logits.log_softmax(-1), VALUE).sum().backward()
        optimizer.step()
    assert torch.allclose(logits.softmax(-1), P, atol=0.03)


def test_cross_entropy_on_the_targets_draws_is_least_at_its_distribution():
    draws = torch.multinomial(P, 4000, replacement=True, generator=torch.Generator().manual_seed(0))
    at = lambda q: LOSSES["ce"](P.log()[:, None], q.log()[:, None].expand(-1, 4000, -1), draws).mean()  # noqa: E731
    assert at(P) < at(Q)


def test_a_mixture_is_the_weighted_sum():
    found = weighted_loss({"kl": 1.0, "tv": 0.5})(P.log(), Q.log(), VALUE)
    assert torch.allclose(found, by_hand("kl") + 0.5 * by_hand("tv"))


def test_an_unknown_loss_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown loss 'l2'; valid: ce, kl"):
        weighted_loss({"l2": 1.0})
