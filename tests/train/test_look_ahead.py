"""Look-ahead embeddings: what is trained is what drafts, the target is not trained, and training raises acceptance."""

import pytest
import torch

from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.self_drafting.mask_tokens import MaskTokens
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, RecordedWindow, unroll
from tests.drafters.runs import greedy, random_prompt, run
from tests.families import FAMILIES, build


def window_of(model, rows: int = 16) -> RecordedWindow:
    """Eight random values and what the model says to them."""
    inputs = random_prompt(*[8] * rows, seed=7)
    ids = torch.cat([inputs["input_ids"], torch.tensor(greedy(model, inputs, new=16))], 1)
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 8:] = True
    with torch.no_grad():
        last = model(ids, output_hidden_states=True).hidden_states[-1]
    return RecordedWindow(ids, last[..., :0], last, own)


def net_of(model, tokens: int = 3) -> MaskTokens:
    torch.manual_seed(0)
    net = MaskTokens(model.config.hidden_size, tokens)
    net.attach(model)
    return net


def test_the_distributions_of_training_are_those_of_a_generation(big):
    net, window, drafts = net_of(big), window_of(big, rows=1), []
    with torch.no_grad():
        levels = list(unroll(net, window, None, None, 3))
    inputs = {"input_ids": window.ids[:, :8], "attention_mask": torch.ones(1, 8, dtype=torch.long)}
    run(
        big, GuidedDrafter(net, Chain(most_likely)), inputs, new=14, on_step=lambda step: drafts.append((int(step.draft.start), step.draft))
    )
    for start, draft in drafts[1:4]:
        place = 8 + start - 1  # of the pending token
        assert [level.logits[0, place].argmax().item() for level in levels] == draft.nodes[0, 2:5].tolist()


def test_training_raises_acceptance_and_leaves_the_target_alone(big, tmp_path):
    before = {name: value.clone() for name, value in big.state_dict().items()}
    window, net = window_of(big), net_of(big)
    example = DistillationLoss(net, big, Aim(depth=3))
    prompts = {"input_ids": window.ids[:, :8], "attention_mask": torch.ones(16, 8, dtype=torch.long)}
    accepted = [run(big, GuidedDrafter(net, Chain(most_likely)), prompts, new=16).stats.accepted]
    first = example(window).item()
    fit(example, lambda m, turn: m(window), Fit(steps=60, lr=3e-2, warmup=3), tmp_path / "run.pt")
    accepted.append(run(big, GuidedDrafter(net, Chain(most_likely)), prompts, new=16).stats.accepted)
    assert example(window).item() < 0.9 * first
    assert accepted[1] > accepted[0]
    assert all(torch.equal(value, before[name]) for name, value in big.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in big.parameters())


@pytest.mark.parametrize("name", ["Mistral", "Gemma-3", "GPT-2"])
def test_windows_and_mixtures_are_seen_through(name):
    """The target's own distribution after a place does not change for the embeddings behind it, and each sees no later place."""
    model = build(FAMILIES[name])
    net = net_of(model)
    ids = torch.randint(3, 60, (1, 20))
    own = torch.ones_like(ids, dtype=torch.bool)
    last = torch.zeros(1, 20, 32)
    with torch.no_grad():
        whole = [level.logits for level in unroll(net, RecordedWindow(ids, last, last, own), None, None, 3)]
        cut = [level.logits for level in unroll(net, RecordedWindow(ids[:, :12], last[:, :12], last[:, :12], own[:, :12]), None, None, 3)]
    assert all(torch.allclose(a[:, :8], b[:, :8], atol=1e-4) for a, b in zip(whole, cut, strict=True))


def test_refusals(big):
    window = window_of(big, rows=1)
    with pytest.raises(ValueError, match="call attach"):
        next(unroll(MaskTokens(32), window, None, None, 2))
    with pytest.raises(ValueError, match="too short for 30 mask tokens: give at least 32"):
        next(unroll(net_of(big, 30), window, None, None, 2))


def test_on_disk_and_back(big, tmp_path):
    net = net_of(big)
    save_drafter(net, tmp_path / "net")
    assert torch.equal(load_drafter(tmp_path / "net").embedding, net.embedding)
