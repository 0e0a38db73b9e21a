"""Recorded lessons: what is recorded is what the target thinks, what is counted is what it wrote, and training them raises acceptance."""

import pytest
import torch

from mmspec.drafters.body.systems import SYSTEMS
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import NETS, new_net
from mmspec.drafters.features.eagle import Eagle3
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.medusa import Medusa
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, Joint, unroll
from mmspec.train.record import record
from tests.conftest import llama
from tests.drafters.runs import greedy, random_prompt, run
from tests.train.stopping import Stop

KINDS = ("medusa", "hydra", "recurrent", "amphista", "eagle1", "eagle3", "dflash", "dflash2", "dspark", "p-eagle", *SYSTEMS)
READING = [name for name in KINDS if name in NETS]
STEPS = {"medusa": 100, "recurrent": 100}  # of training; 40 are enough for the others


@pytest.fixture(scope="module")
def big():
    """The suite's target, frozen: a drafter that reads its head must not leave gradients there."""
    return llama(3, seed=0).requires_grad_(False)


@pytest.fixture(scope="module")
def written(big):
    """Windows of 24 values, 8 given and 16 greedily written by the target: ids [32, 24], own [32, 24]."""
    inputs = random_prompt(*[8] * 32, seed=7)
    ids = torch.cat([inputs["input_ids"], torch.tensor(greedy(big, inputs, new=16))], 1)
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 8:] = True
    return ids, own


def example_of(big, written, kind, folder, **aim):
    torch.manual_seed(0)
    net = new_net(kind, big)
    data = record(big, *written, net.reads, folder)
    return DistillationLoss(net, big, Aim(**{"depth": 3} | aim)), data


def test_what_is_recorded_is_what_the_target_thinks(big, written, tmp_path):
    data = record(big, *written, (0, 2), tmp_path / "states")
    window = data.window([3, 5])
    with torch.no_grad():
        out = big(written[0][[3, 5]], output_hidden_states=True)
    assert torch.equal(window.ids, written[0][[3, 5]])
    assert torch.allclose(window.features, torch.cat([out.hidden_states[0], out.hidden_states[2]], -1), rtol=2e-3, atol=2e-3)
    assert torch.allclose(window.last, out.hidden_states[-1], rtol=2e-3, atol=2e-3)


def test_a_recording_of_other_states_is_refused(big, written, tmp_path):
    record(big, *written, (1,), tmp_path / "states")
    with pytest.raises(ValueError, match=r"holds hidden states \[1, 3\], but \[2, 3\] are needed"):
        record(big, *written, (2,), tmp_path / "states")


@pytest.mark.parametrize("kind", READING)
def test_only_what_the_target_wrote_counts(big, written, tmp_path, kind):
    """Values in a window after the last one of the target's own change nothing; the target's own do."""
    example, data = example_of(big, written, kind, tmp_path / "states")
    _, own = written
    window = data.window(list(range(4)))
    whole = example(window)
    cut = own.clone()
    cut[:, 20:] = False
    less = example(type(window)(window.ids, window.features, window.last, cut[:4]))
    garbled = window.ids.clone()
    garbled[:, 20:] = 3
    same = example(type(window)(garbled, window.features, window.last, cut[:4]))
    assert torch.allclose(less, same, atol=1e-5)
    assert not torch.allclose(whole, less, atol=1e-4)


@pytest.mark.parametrize("kind", READING)
def test_training_raises_acceptance_in_training_and_in_use(big, written, tmp_path, kind):
    example, data = example_of(big, written, kind, tmp_path / "states", distributions={"kl": 1.0, "tv": 0.5})
    everything = data.window(list(range(32)))
    before = example.acceptance(everything)
    fit(example, lambda m, turn: m(data.draw(turn, 8)), Fit(steps=STEPS.get(kind, 40), lr=1e-2, warmup=5), tmp_path / "run.pt")
    after = example.acceptance(everything)
    assert all(now[0] > then[0] for now, then in zip(after, before, strict=True))
    prompts = {"input_ids": written[0][:, :8], "attention_mask": torch.ones(32, 8, dtype=torch.long)}
    torch.manual_seed(0)
    drafted = [
        run(big, GuidedDrafter(net.eval(), Chain(most_likely)), prompts, length=3, new=16).stats
        for net in (new_net(kind, big), example.net)
    ]
    assert drafted[1].accepted > 1.5 * drafted[0].accepted


def test_the_measured_acceptance_is_the_trained_one(big, written, tmp_path):
    """Greedy agreement at level 1 on the target's own text is the share of first draft tokens that greedy decoding accepts."""
    example, data = example_of(big, written, "eagle3", tmp_path / "states")
    fit(example, lambda m, turn: m(data.draw(turn, 8)), Fit(steps=40, lr=1e-2, warmup=5), tmp_path / "run.pt")
    hits = judged = 0
    prompts = {"input_ids": written[0][:, :8], "attention_mask": torch.ones(32, 8, dtype=torch.long)}

    def count(step):
        nonlocal hits, judged
        judged, hits = judged + sum(step.committed.judged), hits + sum(step.committed.accepted)

    run(big, GuidedDrafter(example.net, Chain(most_likely)), prompts, length=1, new=16, on_step=count)
    assert abs(hits / judged - example.acceptance(data.window(list(range(32))))[0][1]) < 0.1


def test_a_part_of_the_vocabulary_is_enough(big, written, tmp_path):
    torch.manual_seed(0)
    net = Eagle3((1, 2, 3), new_net("eagle3", big).config["sizes"], 50, 20)
    common = torch.bincount(written[0].flatten(), minlength=50).topk(20).indices.sort().values
    net.know(common)
    net.start_from(big)
    assert torch.equal(net.vocabulary, common)
    assert net.t2d.nonzero()[:, 0].tolist() == common.tolist()
    example, data = DistillationLoss(net, big, Aim(depth=3)), record(big, *written, net.reads, tmp_path / "states")
    before = example.acceptance(data.window(list(range(32))))
    fit(example, lambda m, turn: m(data.draw(turn, 8)), Fit(steps=40, lr=1e-2, warmup=5), tmp_path / "run.pt")
    assert example.acceptance(data.window(list(range(32))))[0][0] > before[0][0] + 0.02


def test_killed_and_resumed_training_ends_with_the_same_weights(big, written, tmp_path):
    plan = Fit(steps=12, lr=1e-2, warmup=2, checkpoint_every=4)
    finals = []
    for name, stops in (("whole", ()), ("cut", (3, 6, 9))):
        for stop in (*stops, None):
            (example, data), end = example_of(big, written, "eagle1", tmp_path / "states", states=1.0), Stop(stop)

            def loss(module, turn, end=end, data=data):
                end.check(turn)
                return module(data.draw(turn, 8))

            try:
                fit(example, loss, plan, tmp_path / f"{name}.pt")
            except KeyboardInterrupt:
                continue
        finals.append(example.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(finals[0].values(), finals[1].values(), strict=True))


def test_levels_deeper_than_a_window_are_refused(big, written, tmp_path):
    example, data = example_of(big, written, "medusa", tmp_path / "states", depth=4)
    window = data.window([0])
    short = type(window)(window.ids[:, :4], window.features[:, :4], window.last[:, :4], window.own[:, :4])
    with pytest.raises(ValueError, match="windows of 4 values are too short for 4 levels"):
        list(unroll(example.net, short, big.get_input_embeddings(), big.lm_head, 4))


def test_joint_training_moves_the_target_and_alone_does_not(big, written, tmp_path):
    from copy import deepcopy

    target = deepcopy(big).requires_grad_(True)
    joint = Joint(Medusa(32, 3), target, Aim(depth=3))
    plan = Fit(steps=8, lr=1e-3, warmup=1, rates={"example.": 4.0})
    before = joint(*written).item()
    fit(joint, lambda m, turn: m(*written), plan, tmp_path / "joint.pt")
    assert joint(*written).item() < before
    assert not torch.equal(target.lm_head.weight, big.lm_head.weight)
    example, data = example_of(target, written, "medusa", tmp_path / "states")
    frozen = deepcopy(target.state_dict())
    fit(example, lambda m, turn: m(data.draw(turn, 8)), Fit(steps=3, lr=1e-2), tmp_path / "alone.pt")
    assert all(torch.equal(a, frozen[name]) for name, a in target.state_dict().items())
    assert not any(name.startswith("_target") or "target" in name for name in example.state_dict())


@pytest.mark.parametrize("kind", READING)
def test_a_drafter_read_back_says_the_same(big, tmp_path, kind):
    torch.manual_seed(1)
    net = new_net(kind, big).eval()
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    save_drafter(net, tmp_path / "drafter")
    again = load_drafter(tmp_path / "drafter")
    assert again.config == net.config
    stats = [run(big, GuidedDrafter(n, Chain(most_likely)), random_prompt(7, 4)).stats.accepted for n in (net, again)]
    assert stats[0] == stats[1]


def test_the_loss_is_the_weighted_mean_over_levels_and_seeing_places(big, written, tmp_path):
    """By hand: level j counts its places from the j-th on, and weighs decay ** (j - 1)."""
    example, data = example_of(big, written, "eagle1", tmp_path / "states", decay=0.5)
    window = data.window([1, 4])
    everything = type(window)(window.ids, window.features, window.last, torch.ones_like(window.own))
    with torch.no_grad():
        log_p = big.lm_head(window.last).log_softmax(-1)
        total = 0.0
        for j, level in enumerate(unroll(example.net, window, big.get_input_embeddings(), big.lm_head, 3)):
            places = window.ids.shape[1] - 1 - level.after
            log_q = level.logits[:, j:places].log_softmax(-1)
            p = log_p[:, level.after + j : level.after + places]
            total += 0.5**j * (p.exp() * (p - log_q)).sum(-1).mean()
        assert torch.allclose(example(everything), total / 1.75, rtol=1e-5)
