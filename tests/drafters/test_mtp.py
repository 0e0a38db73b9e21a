"""Multi-token prediction: modules one behind the other and heads side by side, against what their training and transformers compute."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from mmspec.core.control import Fixed
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.token import Token
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.mtp import ChainedMTP, ModuleSession
from mmspec.drafters.heads.mtp_parallel import ParallelMTP
from mmspec.drafters.shapes import Chain, Comb, most_likely, sampled, top
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.train.distillation import Aim, DistillationLoss, RecordedWindow, unroll
from tests.drafters import test_guided
from tests.drafters.runs import NEW, fives, greedy, markov, plain, prompt_of, random_prompt, run
from tests.drafters.test_guided import gap_to_training, lively

LLAMA = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
QWEN = LLAMA | {"model_type": "qwen3", "head_dim": 16}
KINDS = {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 6, "use_sliding_window": True}
SLIDING = LLAMA | {"model_type": "qwen3"} | KINDS
MAKE = {
    "one": lambda: ChainedMTP(LLAMA),
    "two": lambda: ChainedMTP(LLAMA, 2),
    "three": lambda: ChainedMTP(QWEN, 3, hidden_first=True),
    "six": lambda: ChainedMTP(LLAMA, 6),
    "sliding": lambda: ChainedMTP(SLIDING, 3),
    "parallel": lambda: ParallelMTP(LLAMA, 4),
    "parallel-last-state": lambda: ParallelMTP(SLIDING, 3, reads=(-1,)),
    "stacked": lambda: ParallelMTP(LLAMA, 3, reads=(-1,), chained=True),
}

STACKED = ("mtp-parallel", {"heads": 3, "reads": [-1], "chained": True})  # Llasa+'s


@pytest.fixture(scope="module")
def nets():
    return {name: lively(make()) for name, make in MAKE.items()}


@pytest.fixture(params=MAKE)
def net(request, nets):
    return nets[request.param]


# --- what is trained is what is run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [(1, 2, 9), (0, 9, 3)])
def test_a_net_drafts_with_the_distributions_it_was_trained_on(big, net, wrong):
    assert gap_to_training(big, net, wrong) < 1e-5


@pytest.mark.parametrize("name", ["two", "three", "six"])
def test_a_dropped_state_between_rounds_is_caught(big, nets, name, monkeypatch):
    commit = ModuleSession.commit

    def forget(self, keep):
        commit(self, keep)
        self.last = torch.zeros_like(self.last)

    monkeypatch.setattr(ModuleSession, "commit", forget)
    assert gap_to_training(big, nets[name]) > 1e-2


@pytest.mark.parametrize("name", ["two", "three", "six"])
def test_a_module_fed_from_its_own_column_is_caught(big, nets, name, monkeypatch):
    before = ModuleSession.before

    def shifted(self, parents):
        return torch.cat([before(self, parents)[:, 1:], self.out[:, -1:]], 1)

    monkeypatch.setattr(ModuleSession, "before", shifted)
    assert gap_to_training(big, nets[name]) > 1e-2


class Turns(Fixed):
    """Draft lengths taken in turn."""

    turns = [4, 1, 4, 0, 2]

    def length(self):
        self.turns.append(self.turns.pop(0))
        return self.turns[-1]


@pytest.mark.parametrize("name", ["one", "two", "six", "parallel"])
def test_short_drafts_leave_no_module_behind(big, nets, name, monkeypatch):
    """Rounds of one draft token reach module 0 only: the others must still learn what those rounds committed."""
    monkeypatch.setattr(test_guided, "run", lambda *args, length, **rest: run(*args, control=Turns(4), **rest))
    assert gap_to_training(big, nets[name], (9, 9, 9)) < 1e-5


def test_modules_do_what_transformers_own_do(tmp_path):
    """A DeepSeek-V3 checkpoint with two modules: found by `from_pretrained`, and every distribution equal to transformers' on the same
    text."""
    torch.manual_seed(0)
    target, folder = deepseek(modules=2), tmp_path / "target"
    with_modules(target, folder)
    target = reloaded(folder)
    net = ChainedMTP.from_pretrained(target)
    assert len(net.layers) == 2
    ids = torch.randint(0, 50, (1, 14))
    theirs = MtpModel.from_pretrained(target)
    with torch.no_grad():
        hidden = state = target(ids, output_hidden_states=True).hidden_states[-1]
        cache = MtpCache(config=theirs.config)
        wanted = []
        for k in range(2):
            positions = torch.arange(k + 1, 14)[None]
            state = theirs.forward_layer(k, state[:, : 13 - k], positions, cache, input_ids=ids[:, k + 1 :])
            wanted.append(target.lm_head(state)[0].log_softmax(-1))
    window = RecordedWindow(ids, hidden, hidden, torch.ones_like(ids, dtype=torch.bool))
    with torch.no_grad():
        for k, level in enumerate(unroll(net, window, target.get_input_embeddings(), target.lm_head, 2)):
            assert (level.logits[0, k:].log_softmax(-1) - wanted[k]).abs().max() < 1e-5
    inputs = random_prompt(5, 9, 1, seed=1)
    assert run(target, GuidedDrafter(net, Chain(most_likely)), inputs).sequences.tolist() == greedy(target, inputs)
    save_drafter(net, tmp_path / "drafter")
    again = load_drafter(tmp_path / "drafter")
    assert again.config == net.config
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=True))


def deepseek(modules):
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8}
    rest = {"qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
    config = DeepseekV3Config(**sizes, **heads, **rest, first_k_dense_replace=1, num_nextn_predict_layers=modules)
    model = DeepseekV3ForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model


def with_modules(model, folder):
    """Save `model` with random modules behind its layers, named as DeepSeek names them."""
    model.save_pretrained(folder)
    weights, layers = load_file(folder / "model.safetensors"), model.config.num_hidden_layers
    for k in range(model.config.num_mtp_layers):
        for name in list(weights):
            if name.startswith(f"model.layers.{layers - 1}."):
                weights[name.replace(f".{layers - 1}.", f".{layers + k}.", 1)] = torch.randn_like(weights[name]) * 0.2
        new = {"enorm": (32,), "hnorm": (32,), "eh_proj": (32, 64), "shared_head.norm": (32,)}
        weights |= {f"model.layers.{layers + k}.{name}.weight": torch.randn(shape) * 0.2 for name, shape in new.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def reloaded(folder):
    """DeepSeek-V3 is known to have 61 layers, so its modules are looked for behind those."""
    known = DeepseekV3ForCausalLM._keys_to_ignore_on_load_unexpected
    DeepseekV3ForCausalLM._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2.*", r"model\.layers\.3.*"]
    try:
        model = DeepseekV3ForCausalLM.from_pretrained(folder).eval()
    finally:
        DeepseekV3ForCausalLM._keys_to_ignore_on_load_unexpected = known
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2.*", r"model\.layers\.3.*"]
    return model


# --- rules, shapes, training, refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "rule"),
    [(Comb(pick=top), Greedy()), (ExpandRerank(3, 4, 9), Greedy()), (Comb(), Coupled())],
    ids=["comb", "search", "coupled-comb"],
)
@pytest.mark.parametrize("net", ["one", "three", "six", "sliding", "parallel-last-state"], indirect=True)
def test_trees_give_the_same_tokens(big, net, shape, rule):
    """Nets that `tests.drafters.sources` has not; those it has: `tests.drafters.test_products`."""
    inputs = random_prompt(5, 9, 1, seed=1)
    temperature = None if isinstance(rule, Greedy) else 1.0
    expected = greedy(big, inputs) if temperature is None else plain(big, inputs, seed=4)
    assert run(big, GuidedDrafter(net, shape), inputs, rule, seed=4, temperature=temperature).sequences.tolist() == expected


def test_the_token_rule_runs(big, net):
    out = run(big, GuidedDrafter(net, Chain(sampled)), random_prompt(5, 9, 1), Token(), temperature=1.0)
    assert out.lengths.tolist() == [NEW] * 3


@pytest.mark.parametrize(("kind", "options"), [("mtp", {"modules": 2}), ("mtp", {}), ("mtp-parallel", {"heads": 3}), STACKED])
def test_training_leads_to_acceptance(kind, options, tmp_path):
    target = markov(fives)
    torch.manual_seed(0)
    net = new_net(kind, target, options)
    starts = torch.randint(0, 50, (64, 1))
    ids = starts // 5 * 5 + (starts + torch.arange(16)) % 5
    with torch.no_grad():
        hidden = target(ids, output_hidden_states=True).hidden_states
    window = RecordedWindow(ids, hidden[net.reads[0]], hidden[-1], torch.ones_like(ids, dtype=torch.bool))
    example = DistillationLoss(net, target, Aim(depth=3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(120 if "chained" in options else 60):
        loss = example(window)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(agree > 0.9 for _, agree in example.acceptance(window))
    save_drafter(net, tmp_path / "net")
    inputs = prompt_of([5, 6, 7], [20, 21, 22, 23], [41])
    out = run(target, GuidedDrafter(load_drafter(tmp_path / "net"), Chain(most_likely)), inputs, length=3, new=24)
    assert out.sequences.tolist() == greedy(target, inputs, new=24)
    assert out.stats.accepted >= 0.9 * out.stats.drafted


def test_parallel_heads_begin_with_the_targets_next_value(big):
    """Head 0 of an untrained net, started from the target, has the distribution of the target's own last layer."""
    net = new_net("mtp-parallel", big, {"heads": 2})
    net.start_from(big)
    ids = torch.randint(0, 50, (2, 9))
    with torch.no_grad():
        out = big(ids, output_hidden_states=True)
        mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
        found = big.lm_head(net(1, out.hidden_states[-2], torch.arange(9).expand(2, -1), mask, None)[0])
    assert (found - out.logits).abs().max() < 1e-4


def test_refusals(big):
    with pytest.raises(ValueError, match="modules is 0"):
        ChainedMTP(LLAMA, 0)
    with pytest.raises(ValueError, match="heads is 0"):
        ParallelMTP(LLAMA, 0)
    with pytest.raises(ValueError, match="no transformers config"):
        ChainedMTP({"model_type": "nothing"})
    with pytest.raises(ValueError, match="linear_attention, which cannot be rolled back"):
        ChainedMTP(LLAMA | {"model_type": "qwen3_next", "layer_types": ["linear_attention"]})
    with pytest.raises(ValueError, match="one rotary embedding"):
        ChainedMTP({"model_type": "gpt2"})
    with pytest.raises(ValueError, match="declares no multi-token prediction modules"):
        ChainedMTP.from_pretrained(big)
    with pytest.raises(ValueError, match="no multi-token prediction modules for DeepseekV3ForCausalLM"):
        ChainedMTP.from_pretrained(deepseek(1))
    with pytest.raises(ValueError, match="16 wide, but the target's are 32"):
        run(big, GuidedDrafter(ChainedMTP(LLAMA | {"hidden_size": 16})), random_prompt(4))
