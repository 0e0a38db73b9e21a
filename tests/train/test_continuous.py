"""Training of continuous models: densities, the gap a draft is distilled by, and that it foretells what is accepted."""

import copy
from typing import Any

import pytest
import torch

from mmspec.core.distributions.denoising_path import Denoiser
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.train.continuous import drafts, targets
from mmspec.train.continuous.deeper import deepened
from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig, scheduler
from mmspec.vision.continuous.mar import MaskedAR, MaskedARConfig

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "head_width": 16, "head_blocks": 1}


def model(head="diffusion", seed=0, **rest) -> Any:
    torch.manual_seed(seed)
    sizes = {**SMALL, "grid": 3, "channels": 4, "classes": 3, "initializer_range": 0.3, **rest}
    made = MaskedAR(MaskedARConfig(**sizes)) if head == "masked" else ContinuousAR(ContinuousARConfig(head=head, **sizes))
    return made.eval()


def batch(rows, seed=0, channels=4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, (rows,), generator=generator), torch.randn(rows, 9, channels, generator=generator), generator


def test_a_mixture_s_density_is_torch_s():
    generator = torch.Generator().manual_seed(0)
    logits, means, x = (torch.randn(*shape, generator=generator) for shape in ((5, 3), (5, 3, 2), (5, 2)))
    scales = torch.rand(5, 3, 2, generator=generator) + 0.1
    parts = torch.distributions.Independent(torch.distributions.Normal(means, scales), 1)
    whole = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=logits), parts)
    torch.testing.assert_close(targets.mixture_log_prob(x, logits, means, scales), whole.log_prob(x))


def test_a_mixture_s_tokens_have_its_moments():
    generator = torch.Generator().manual_seed(0)
    logits, means = torch.tensor([0.0, 1.0]).log_softmax(-1), torch.tensor([[-1.0, 2.0], [1.0, 0.0]])
    scales, count = torch.tensor([[0.5, 1.0], [0.2, 2.0]]), 40_000
    distribution = (part.expand(count, *part.shape) for part in (logits, means, scales))
    found, share = targets.mixture_drawn(generator, *distribution), logits.exp()[:, None]
    mean = (share * means).sum(0)
    std = ((share * (means**2 + scales**2)).sum(0) - mean**2).sqrt()
    assert ((found.mean(0) - mean).abs() < 4 * std / count**0.5).all()
    assert ((found.std(0) / std - 1).abs() < 0.03).all()


@pytest.mark.parametrize("head", ["diffusion", "mixture", "masked"])
def test_a_example_lowers_its_loss(head):
    taught = model(head, initializer_range=0.02)
    example, (classes, tokens, _) = targets.ContinuousLoss(taught, scheduler()), batch(16)
    optimizer, losses = torch.optim.AdamW(taught.parameters(), 1e-2), []
    for step in range(30):
        losses.append(example(classes, tokens, tokens, torch.Generator().manual_seed(step)))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


@pytest.mark.parametrize("every", [1, 2])
def test_the_gap_asked_at_every_step_is_the_path_s(every):
    """One batched call at scattered steps says what the chain's own means say; what is asked at fewer steps is right in the mean."""
    target, draft, noise_schedule = model(seed=1), model(seed=2), NoiseSchedule.of(scheduler(), 8, 0.1)
    classes, seen, _ = batch(4)
    whole = drafts.PathExample(draft, target, [noise_schedule], every=every, asked=8)
    told_p, told_q = (each.states(classes, seen).flatten(0, 1) for each in (target, draft))
    with torch.no_grad():
        path = whole.paths(told_q, noise_schedule, torch.Generator().manual_seed(5))
        mean_p = Denoiser(target.head, noise_schedule).means(told_p, path)
        mean_q = Denoiser(draft.head, noise_schedule, every).means(told_q, path)
        wanted = ((mean_p - mean_q) / noise_schedule.std[:, None]).square().sum((1, 2)).float()
        found = whole.gap(told_p, told_q, noise_schedule, torch.Generator().manual_seed(5))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        half = drafts.PathExample(draft, target, [noise_schedule], every=every, asked=2)
        many = torch.stack([half.gap(told_p, told_q, noise_schedule, torch.Generator().manual_seed(n)) for n in range(300)])
        full = torch.stack([whole.gap(told_p, told_q, noise_schedule, torch.Generator().manual_seed(n)) for n in range(300)])
    spread = (many.mean(1) - full.mean(1)).std() / 300**0.5
    assert (many.mean() - full.mean()).abs() < 4 * spread


def test_a_draft_that_is_the_target_has_no_gap():
    target = model()
    example = drafts.PathExample(copy.deepcopy(target), target, [NoiseSchedule.of(scheduler(), 8, 0.1)])
    classes, seen, generator = batch(4)
    facts = example.facts(classes, seen, example.noise_schedules[0], generator)
    assert facts["acceptance"] > 0.999
    assert facts["K, mean"] < 1e-6


def test_the_gap_foretells_acceptance():
    """Outputs that differ by a constant: log ratios are normal exactly, and 2 Phi(-sqrt(K) / 2) is what is accepted."""
    target = model()
    draft, noise_schedule = copy.deepcopy(target), NoiseSchedule.of(scheduler(), 8, 0.1)
    with torch.no_grad():
        draft.head.output.bias += 0.2
    classes, seen, generator = batch(400)
    facts = drafts.PathExample(draft, target, [noise_schedule]).facts(classes, seen, noise_schedule, generator)
    assert 0.3 < facts["acceptance by K"] < 0.9
    assert abs(facts["acceptance"] - facts["acceptance by K"]) < 4 * 0.4 / 3600**0.5


def test_a_mixture_draft_s_loss_is_the_rejected_share():
    """In one dimension, against the integral of (p - q)+."""
    target, draft = (model("mixture", seed, channels=1, components=2) for seed in (1, 2))
    classes, seen, generator = batch(1, channels=1)
    example, x = drafts.MixtureExample(draft, target), torch.linspace(-30, 30, 60_001)

    def log_density(each):
        distribution = (part[0, 4].expand(len(x), *part.shape[2:]) for part in each.head(each.states(classes, seen)))
        return targets.mixture_log_prob(x[:, None], *distribution)

    with torch.no_grad():
        p, q = log_density(target), log_density(draft)
        wanted = torch.trapezoid((p.exp() - q.exp()).clamp_min(0), x)
        told_p, told_q = (each.states(classes, seen).expand(4000, -1, -1) for each in (target, draft))
        found = example.terms(told_p, told_q, generator)[0][:, 4]
    assert abs(found.mean() - wanted) < 4 * found.std() / 4000**0.5
    assert 0.05 < wanted < 0.99


@pytest.mark.parametrize("head", ["diffusion", "mixture", "masked"])
def test_distillation_moves_the_draft_alone(head):
    target, draft = model(head, 1).requires_grad_(False), model(head, 2)
    example = (
        drafts.MixtureExample(draft, target)
        if head == "mixture"
        else drafts.PathExample(draft, target, [NoiseSchedule.of(scheduler(), 8, 0.1)])
    )
    assert all(name.startswith("draft.") for name in example.state_dict())
    classes, seen, generator = batch(4)
    example(classes, seen, generator, 0.25).backward()
    assert all(parameter.grad is not None for name, parameter in draft.named_parameters() if "places" not in name)
    assert all(parameter.grad is None for parameter in target.parameters())


def test_contexts_are_noised_and_classes_dropped_as_said():
    generator = torch.Generator().manual_seed(0)
    added = targets.noisy(torch.zeros(200, 49, 8), generator)
    assert abs(added.square().mean().sqrt() - targets.NOISE / 3**0.5) < 0.005  # the level is uniform
    lost = (targets.dropped(torch.zeros(20_000, dtype=torch.long), 10, generator) == 10).float().mean()
    assert abs(lost - targets.DROPPED) < 0.01


def test_pictures_are_written_position_by_position():
    """With a share of 1 all tokens are the other model's; a seed repeats a picture."""
    one, other, noise_schedule = model(seed=1), model(seed=2), NoiseSchedule.of(scheduler(), 8, 0.1)
    classes, seeds = torch.arange(3), [torch.Generator().manual_seed(0) for _ in range(3)]
    first, again = (targets.written(one, classes, noise_schedule, seed) for seed in seeds[:2])
    assert first.shape == (3, 9, 4)
    torch.testing.assert_close(first, again)
    mixed = targets.written(one, classes, noise_schedule, seeds[2], (other, 1.0))
    assert not torch.allclose(first, mixed)


@pytest.mark.parametrize("layers", [2, 3, 7])
def test_new_layers_begin_as_the_identity(layers):
    """And all of them learn: their outputs have gradients, and after a step their inputs, too."""
    old, (classes, seen, _) = model(num_hidden_layers=2), batch(4)
    new = deepened(old, layers)
    assert new.config.num_hidden_layers == len(new.layers) == layers
    torch.testing.assert_close(new.states(classes, seen), old.states(classes, seen))
    new.states(classes, seen).square().sum().backward()
    for layer in new.layers:
        assert layer.attention.wo.weight.grad.abs().sum() > 0
        assert layer.feed_forward.w2.weight.grad.abs().sum() > 0


def test_the_weakest_units_are_dropped():
    """Units without an effect, wherever they stand: the outputs stay."""
    old, (classes, seen, _) = model(num_hidden_layers=2), batch(4)
    with torch.no_grad():
        for number, layer in enumerate(old.layers):
            layer.feed_forward.w2.weight[:, number::4] = 0
    new = deepened(old, 5, 48)
    assert new.config.intermediate_size == new.layers[0].feed_forward.w1.out_features == 48
    torch.testing.assert_close(new.states(classes, seen), old.states(classes, seen))


@pytest.mark.parametrize(
    ("given", "words"), [((1, None), "layers is 1, but the model has 2"), ((3, 65), "inner is 65"), ((3, 0), "inner is 0")]
)
def test_models_are_not_made_smaller(given, words):
    with pytest.raises(ValueError, match=words):
        deepened(model(num_hidden_layers=2), *given)
