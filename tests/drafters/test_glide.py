"""GLIDE: reads the target's slots before every value and no others, in a generation as in training."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, Phi3Config, Qwen3Config

from mmspec.core.control import Fixed
from mmspec.core.rules.token import Token
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.features.glide import Glide, LastLayer, Reader
from mmspec.drafters.guided import GuidedDrafter, head_of
from mmspec.drafters.shapes import Chain, most_likely, sampled
from mmspec.train.distillation import Aim, DistillationLoss, RecordedWindow, unroll
from tests.drafters import test_guided
from tests.drafters.runs import NEW, fives, greedy, markov, prompt_of, random_prompt, run
from tests.drafters.test_guided import gap_to_training, lively

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.fixture(scope="module")
def net(big):
    net = lively(new_net("glide", big))
    net.start_from(big)
    return net


# --- what is trained is what is run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [(1, 2, 9), (0, 9, 3)])
def test_a_net_drafts_with_the_distributions_it_was_trained_on(big, net, wrong):
    assert gap_to_training(big, net, wrong) < 1e-5


class Turns(Fixed):
    """Draft lengths taken in turn."""

    turns = [4, 1, 4, 0, 2]

    def length(self):
        self.turns.append(self.turns.pop(0))
        return self.turns[-1]


def test_drafts_of_changing_length(big, net, monkeypatch):
    monkeypatch.setattr(test_guided, "run", lambda *args, length, **rest: run(*args, control=Turns(4), **rest))
    assert gap_to_training(big, net, (9, 9, 9)) < 1e-5


@pytest.mark.parametrize("shift", [-1, 1, None], ids=["one-slot-late", "one-slot-of-a-draft", "all-slots"])
def test_slots_seen_amiss_are_caught(big, net, shift, monkeypatch):
    across = Reader.across

    def amiss(self):
        found, slot = across(self), torch.arange(self.session.view(0))
        seen = slot < slot.numel() if shift is None else slot < self.session.lengths[:, None, None] + shift
        return replace(found, visible=seen.expand_as(found.visible))

    monkeypatch.setattr(Reader, "across", amiss)
    assert gap_to_training(big, net) > 1e-3


def test_queries_at_the_wrong_place_are_caught(big, net, monkeypatch):
    turned = LastLayer.turned

    def late(self, query, positions):
        return turned(self, query, positions + (self is not net.layer))

    monkeypatch.setattr(LastLayer, "turned", late)
    assert gap_to_training(big, net) > 1e-3


@pytest.mark.parametrize("wrong_keys", [False, True])
def test_keys_made_anew_are_those_the_target_caches(big, wrong_keys, monkeypatch):
    layer = LastLayer.of(big)
    if wrong_keys:
        rope = LastLayer.rope
        monkeypatch.setattr(LastLayer, "rope", lambda self, x, positions: rope(self, x, positions + 1))
        with pytest.raises(ValueError, match="do not follow from what enters its last layer"):
            layer.check(big)
    else:
        layer.check(big)


@pytest.mark.parametrize(
    "config",
    [Qwen3Config(**SMALL, head_dim=16), Phi3Config(**SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2)],
    ids=["qwen3", "phi3"],
)
def test_families_with_keys_of_their_own_making(config):
    """Norms on keys, one projection for all three: drafting equals training there too."""
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_config(config).eval()
    for parameter in target.parameters():
        parameter.data.mul_(6)
    net = lively(new_net("glide", target))
    net.start_from(target)
    inputs = random_prompt(5, 9, 1, seed=1)
    assert run(target, GuidedDrafter(net, Chain(most_likely)), inputs).sequences.tolist() == greedy(target, inputs)
    assert gap_to_training(target, net, (9, 2, 9)) < 1e-5


# --- rules, shapes, training, refusals --------------------------------------------------------------------------------


def test_the_token_rule_runs(big, net):
    out = run(big, GuidedDrafter(net, Chain(sampled)), random_prompt(5, 9, 1), Token(), temperature=1.0)
    assert out.lengths.tolist() == [NEW] * 3


def test_training_leads_to_acceptance(tmp_path):
    target = markov(fives)
    torch.manual_seed(0)
    net = new_net("glide", target)
    net.start_from(target)
    starts = torch.randint(0, 50, (64, 1))
    ids = starts // 5 * 5 + (starts + torch.arange(16)) % 5
    with torch.no_grad():
        hidden = target(ids, output_hidden_states=True).hidden_states
    window = RecordedWindow(ids, hidden[-2], hidden[-1], torch.ones_like(ids, dtype=torch.bool))
    example = DistillationLoss(net, target, Aim(depth=3))
    assert not any("input_layernorm" in name for name, _ in example.named_parameters())  # the target is no part of it
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(40):
        loss = example(window)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(agree > 0.9 for _, agree in example.acceptance(window))
    save_drafter(net, tmp_path / "net")
    inputs = prompt_of([5, 6, 7], [20, 21, 22, 23], [41])
    out = run(target, GuidedDrafter(load_drafter(tmp_path / "net"), Chain(most_likely)), inputs, length=3)
    assert out.sequences.tolist() == greedy(target, inputs)
    assert out.stats.accepted >= 0.9 * out.stats.drafted


def test_refusals(big):
    with pytest.raises(ValueError, match="4 attention heads cannot share the target's 3"):
        Glide(SMALL, 3, 8)
    with pytest.raises(ValueError, match="has kv_heads 4, but the target 2"):
        run(big, GuidedDrafter(Glide(SMALL, 4, 8)), random_prompt(4))
    with pytest.raises(ValueError, match="16 wide, but the target's are 32"):
        run(big, GuidedDrafter(Glide(SMALL | {"hidden_size": 16}, 2, 8)), random_prompt(4))
    untold, ids = new_net("glide", big), torch.ones(1, 5, dtype=torch.long)
    with torch.no_grad():
        state = big(ids, output_hidden_states=True).hidden_states[-2]
    window = RecordedWindow(ids, state, state, ids.bool())
    with pytest.raises(ValueError, match="call its start_from"):
        next(unroll(untold, window, big.get_input_embeddings(), head_of(big), 1))


@pytest.mark.parametrize(
    "config",
    [GPT2Config(vocab_size=50, n_embd=32, n_layer=1, n_head=4), Gemma3TextConfig(**SMALL, head_dim=8)],
    ids=["gpt2", "gemma3"],
)
def test_families_whose_keys_are_placed_otherwise_are_refused(config):
    with pytest.raises(ValueError, match="glide cannot read the keys of"):
        LastLayer.of(AutoModelForCausalLM.from_config(config))
