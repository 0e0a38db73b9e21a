"""Heads and target trained together on a codec language model: text in front, codes behind, of which the codes alone are lessons."""

from copy import deepcopy

import pytest
import torch

from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.latent import Latent
from mmspec.drafters.heads.medusa import Medusa
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, Joint, RecordedWindow
from tests.conftest import llama
from tests.drafters.runs import greedy, random_prompt, run

CODES = 20  # values from here on are codes, those below are letters
VADUSA = Aim(depth=3, distributions={"ce": 1.0}, decay=0.8, summed=True)


@pytest.fixture(scope="module")
def speech():
    """Windows of 20: 5 letters, 12 codes, 3 to fill up."""
    torch.manual_seed(5)
    ids = torch.cat([torch.randint(3, CODES, (8, 5)), torch.randint(CODES, 50, (8, 12)), torch.zeros(8, 3, dtype=torch.long)], 1)
    return ids, ids >= CODES


def trainable():
    return llama(2, seed=0).requires_grad_(True)


@pytest.mark.parametrize("make", [lambda: Medusa(32, 3), lambda: Latent(32, 3)])
def test_new_heads_say_what_the_targets_head_says(big, make):
    hidden = torch.randn(2, 7, 32)
    net = make()
    for level in range(3):
        assert torch.equal(net.logits(net.read(hidden, level), level, big.lm_head), big.lm_head(hidden))
    assert all(name.endswith(("weight", "bias")) for name, _ in net.named_parameters())
    if isinstance(net, Medusa):
        assert not any(parameter.any() for parameter in net.parameters())


def test_the_loss_is_vadusas(speech):
    """By hand: CE of the base and 0.2 times the sum of 0.8^k CE(head k, the value k + 1 places on), all over codes alone."""
    ids, own = speech
    target, net = trainable(), Medusa(32, 3)
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    with torch.no_grad():
        found = Joint(net, target, VADUSA, 0.2, own_only=True)(ids, own)
        hidden = target(ids, output_hidden_states=True).hidden_states[-1]

        def ce(feature, ahead, places):
            log_q = target.lm_head(feature[:, :places]).log_softmax(-1)
            value, counts = ids[:, ahead : ahead + places], own[:, ahead : ahead + places]
            return -log_q.gather(-1, value[..., None])[..., 0][counts].mean()

        places = ids.shape[1] - 1 - 3  # every level is seen at the same places
        heads = sum(0.8**k * ce(net.blocks[k - 1](hidden), k + 1, places) for k in (1, 2, 3))
        assert found.item() == pytest.approx((ce(hidden, 1, ids.shape[1] - 1) + 0.2 * heads).item(), rel=1e-5)


@pytest.mark.parametrize("own_only", [True, False])
def test_only_codes_are_examples(speech, own_only):
    """What stands in the filling is no lesson with `own_only`; without it, the target learns to fill."""
    ids, own = speech
    joint = Joint(Medusa(32, 3), trainable(), VADUSA, own_only=own_only)
    other = ids.clone()
    other[:, 17:] = 7
    with torch.no_grad():
        assert torch.allclose(joint(ids, own), joint(other, own), atol=1e-6) == own_only


def test_letters_are_no_targets_of_the_heads_either(speech):
    """A letter that a head would have to foretell counts for nothing: the loss with the heads' own distributions changed there is the
    same."""
    ids, own = speech
    target, net = trainable().requires_grad_(False), Medusa(32, 3)
    with torch.no_grad():
        states = target(ids, output_hidden_states=True).hidden_states[-1]
    example = DistillationLoss(net, target, VADUSA)
    first = states.clone()
    first[:, :1] += torch.randn(8, 1, 32)  # from here the heads foretell letters 2, 3 and 4
    losses = [example(RecordedWindow(ids, features, states, own)).item() for features in (states, first)]
    assert losses[0] == losses[1]
    first[:, 3:4] += torch.randn(8, 1, 32)  # and from here codes
    assert example(RecordedWindow(ids, first, states, own)).item() != losses[0]


def test_the_target_is_still_while_the_heads_warm_up(speech, tmp_path):
    ids, own = speech
    target = trainable()
    target.model.embed_tokens.weight.requires_grad_(False)  # what was never to be trained stays so
    before, joint = deepcopy(target.state_dict()), Joint(Medusa(32, 3), target, VADUSA, own_only=True)
    heads = deepcopy(joint.example.state_dict())
    plan = Fit(steps=6, lr=1e-3, warmup=1, rates={"example.": 4.0})

    def moved():
        return {name for name, tensor in target.state_dict().items() if not torch.equal(tensor, before[name])}

    still = []

    def loss(module, turn):
        still.append(not moved())
        return module(ids, own, frozen=turn < 3)

    fit(joint, loss, plan, tmp_path / "joint.pt")
    assert still == [True] * 4 + [False] * 2  # seen before each step: the fourth is the first that moves it
    assert "lm_head.weight" in moved()
    assert "model.embed_tokens.weight" not in moved()
    assert all(not torch.equal(tensor, heads[name]) for name, tensor in joint.example.state_dict().items())


def test_heads_have_the_higher_rate(tmp_path, speech):
    """One step of AdamW moves a weight by its rate, whatever the gradient: 4 for the heads, 1 for the target."""
    ids, own = speech
    target, net = trainable(), Medusa(32, 1)
    before = target.lm_head.weight.detach().clone()
    joint = Joint(net, target, VADUSA, own_only=True)
    plan = Fit(steps=1, lr=1e-3, warmup=1, weight_decay=0.0, rates={"example.": 4.0})
    fit(joint, lambda m, turn: m(ids, own), plan, tmp_path / "joint.pt")
    heads, base = net.blocks[0][0].linear.weight.abs().max().item(), (target.lm_head.weight - before).abs().max().item()
    assert heads / base == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("make", [lambda: Medusa(32, 3), lambda: Latent(32, 3)])
def test_joint_training_leads_to_acceptance_and_stays_exact(make, tmp_path):
    """After training, decoding with the heads gives the new target's own tokens, more of them a call.

    In double precision, where no two values are so nearly as likely that the order of a sum decides between them.
    """
    torch.manual_seed(0)
    target, inputs = trainable().double(), random_prompt(5, 5, 5, 5, seed=3)
    ids = torch.cat([inputs["input_ids"], (20 + torch.arange(16) % 5).expand(4, -1)], 1)
    joint = Joint(make().double(), target, Aim(depth=3, distributions={"ce": 1.0}, summed=True), own_only=True)
    plan = Fit(steps=60, lr=3e-3, warmup=2, rates={"example.": 4.0})
    fit(joint, lambda m, turn: m(ids, ids >= CODES, frozen=turn < 10), plan, tmp_path / "joint.pt")
    out = run(target, GuidedDrafter(joint.example.net.eval(), Chain(most_likely)), inputs, length=3, new=16)
    assert out.sequences.tolist() == greedy(target, inputs, new=16)
    assert out.stats.accepted >= 0.8 * out.stats.drafted
