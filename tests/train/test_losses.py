"""Losses are what their names say, by hand on small laws, and are least where the drafter says what the target says."""

import pytest
import torch

from mmspec.train.losses import LOSSES, mixture

P = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3]], dtype=torch.double)
Q = torch.tensor([[0.5, 0.4, 0.1], [0.6, 0.3, 0.1]], dtype=torch.double)
VALUE = torch.tensor([1, -1])


def by_hand(name):
    kl = lambda a, b: (a * (a / b).log()).sum(-1)  # noqa: E731
    middle = (P + Q) / 2
    return {
        "ce": torch.stack([-Q[0, 1].log(), torch.zeros(())]).double(),
        "kl": kl(P, Q),
        "reverse-kl": kl(Q, P),
        "jsd": 0.5 * (kl(P, middle) + kl(Q, middle)),
        "tv": 1 - torch.minimum(P, Q).sum(-1),
        "top-k": -(P * Q.log()).sum(-1),
    }[name]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula(name):
    assert torch.allclose(LOSSES[name](P.log(), Q.log(), VALUE), by_hand(name), atol=1e-7)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "ce"])
def test_a_loss_is_least_at_the_targets_law(name):
    logits = torch.nn.Parameter(Q.log().clone())
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        LOSSES[name](P.log(), logits.log_softmax(-1), VALUE).sum().backward()
        optimizer.step()
    assert torch.allclose(logits.softmax(-1), P, atol=0.03)


def test_cross_entropy_on_the_targets_draws_is_least_at_its_law():
    draws = torch.multinomial(P, 4000, replacement=True, generator=torch.Generator().manual_seed(0))
    at = lambda q: LOSSES["ce"](P.log()[:, None], q.log()[:, None].expand(-1, 4000, -1), draws).mean()  # noqa: E731
    assert at(P) < at(Q)


def test_a_mixture_is_the_weighted_sum():
    found = mixture({"kl": 1.0, "tv": 0.5})(P.log(), Q.log(), VALUE)
    assert torch.allclose(found, by_hand("kl") + 0.5 * by_hand("tv"))


def test_an_unknown_loss_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown loss 'l2'; valid: ce, kl"):
        mixture({"l2": 1.0})
