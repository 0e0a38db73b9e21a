"""Targets like Gemma: the first token's states are over 1e5, the head is tied and large. Drafters train on them and are accepted."""

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import mmspec
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss
from mmspec.train.record import record
from tests.sizes import GEMMA_LAYERS, LLAMA

BOS, CHANNEL = 1, 5
V = 400


@pytest.fixture(scope="module")
def target():
    """A Gemma 3 whose `<bos>` has states of 1e5 behind its first layer, in a channel that its final norm leaves out."""
    torch.manual_seed(0)
    sizes = LLAMA | {"num_hidden_layers": 4, "head_dim": 8, "vocab_size": V}
    model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, sliding_window=8, layer_types=GEMMA_LAYERS, tie_word_embeddings=True)).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.15)
    model.model.embed_tokens.weight.data[:, CHANNEL] = 0.0
    model.model.embed_tokens.weight.data[BOS, CHANNEL] = 20.0  # times sqrt(32)
    model.model.norm.weight.data[CHANNEL] = -1.0  # Gemma's norms scale by 1 + weight
    model.model.layers[0].register_forward_hook(massive)
    return model.requires_grad_(False)


def massive(module, args, output):
    """Adds 1.5e5 to the channel of `<bos>`."""
    found = output if isinstance(output, torch.Tensor) else output[0]
    found[..., CHANNEL] += 1.5e5 * (found[..., CHANNEL] > 60)
    return output


@pytest.fixture(scope="module")
def written(target):
    prompts = torch.randint(3, V, (24, 5), generator=torch.Generator().manual_seed(0))
    prompts[:, 0] = BOS
    inputs = {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
    out = mmspec.text.generate(target, inputs, max_new_tokens=14, temperature=0.7)
    ids = torch.cat([prompts, out.sequences], 1)
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 5:] = True
    return ids, own


def test_the_first_states_are_recorded_as_they_are(target, written, tmp_path):
    window = record(target, *written, (1, 3), tmp_path / "states", dtype="bfloat16").window([0, 7])
    assert (window.features[:, 0].abs().amax(-1) > 1e5).all()
    assert torch.isinf(window.features[:, 0].half()).any()  # what half precision made of them
    assert window.features[:, 1:].abs().max() < 1e3
    assert window.last.isfinite().all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["eagle3", "eagle1", "medusa", "kangaroo"])
def test_drafters_train_and_are_accepted(target, written, tmp_path, kind, dtype):
    torch.manual_seed(0)
    net = begin_training(net_to_train(kind, target), target, written[0][written[1]])
    data = record(target, *written, net.reads, tmp_path / "states", dtype=dtype)
    example = DistillationLoss(net, target, Aim(depth=2, distributions={"kl": 1.0, "tv": 0.5}))
    everything = data.window(range(24))
    before = example.acceptance(everything)
    losses = fit(example, lambda m, turn: m(data.draw(turn, 8)), Fit(steps=40, lr=1e-2, warmup=5), tmp_path / "run.pt")
    assert all(torch.isfinite(torch.tensor(losses)))
    assert sum(losses[-5:]) < sum(losses[:5])
    assert example.acceptance(everything)[0][0] > before[0][0]
    inputs = {"input_ids": written[0][:4, :5], "attention_mask": torch.ones(4, 5, dtype=torch.long)}
    out = mmspec.text.generate(target, inputs, net.eval(), max_new_tokens=14, draft_length=2)
    assert out.sequences.tolist() == mmspec.text.generate(target, inputs, max_new_tokens=14).sequences.tolist()
    assert out.stats.accepted > 0


def test_states_are_normed_one_by_one(target):
    """A state of another size changes nothing of what the drafter reads: the projection sees directions."""
    torch.manual_seed(0)
    net = net_to_train("eagle3", target)
    states = torch.randn(2, 3, 3, 32)
    wanted = net.take(states.flatten(2))
    states[:, 0, 1] *= 1e6
    states[:, 2] *= torch.tensor([1e-1, 1e3, 1e5])[:, None]
    assert torch.allclose(net.take(states.flatten(2)), wanted, atol=1e-3)


def test_an_adapter_begins_with_the_norm_of_its_target(target):
    """Gemma's norm scales by 1 + weight, an adapter's by weight."""
    net = begin_training(net_to_train("kangaroo", target), target, torch.tensor([3]))
    states = torch.randn(2, 3, 32)
    assert torch.allclose(net.norm(states), target.model.norm(states), atol=1e-4)
