"""Large vocabularies: logits made chunk by chunk, a part of the vocabulary drafted, its head shared with the target."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train, new_net
from mmspec.drafters.checkpoints.published import export_speculators
from mmspec.drafters.features.eagle import Eagle3
from mmspec.drafters.guided import head_rows
from mmspec.drafters.heads.medusa import Medusa
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, Joint, unroll
from mmspec.train.record import record
from mmspec.train.states.memory import TrainingMemory, TrainingSize, training_memory
from tests.drafters.runs import greedy, random_prompt
from tests.sizes import LLAMA

V, KNOWN = 300, 40


def llama(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**{"num_hidden_layers": 3, "max_position_embeddings": 256} | sizes | changes)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(6)
    model.model.norm.weight.data.mul_(torch.linspace(0.1, 0.4, model.config.hidden_size))
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def target():
    return llama()


@pytest.fixture(scope="module")
def written():
    """12 windows of 16 values, of which the target wrote the last 11; row 2 ends early."""
    ids = torch.randint(3, V, (12, 16), generator=torch.Generator().manual_seed(0))
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 5:] = True
    own[2, 9:] = False
    return ids, own


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return tmp_path_factory.mktemp("recordings")


def net_of(target, written, kind: str):
    torch.manual_seed(0)
    options = {"eagle3 in part": {"values": KNOWN}, "eagle3 with the target's head": {"values": KNOWN, "shared_head": True}}.get(kind, {})
    net = new_net(kind.partition(" ")[0], target, options)
    for parameter in net.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return begin_training(net, target, written[0][written[1]])


KINDS = ["eagle3", "eagle3 in part", "eagle3 with the target's head", "eagle1", "medusa", "hydra", "kangaroo", "ctc"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def gradients(net, target, window, **options) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    states = 0.5 if net.kind == "eagle1" else 0.0
    example = DistillationLoss(net, target, Aim(depth=3, distributions={"kl": 1.0, "tv": 0.5, "ce": 0.1}, states=states), **options)
    example.zero_grad()
    loss = example(window)
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found - wanted).abs().max() <= 1e-4 * wanted.abs().max() + 1e-7)


# --- chunks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logits", [1, 3 * V * 7])
def test_chunks_give_the_loss_and_the_gradients_of_the_whole(target, written, recordings, kind, logits):
    net = net_of(target, written, kind)
    window = record(target, *written, net.reads, recordings / "-".join(map(str, net.reads))).window(range(4))
    whole, chunked = gradients(net, target, window), gradients(net, target, window, logits=logits)
    assert torch.allclose(chunked[0], whole[0], rtol=1e-5)
    assert chunked[1].keys() == whole[1].keys() != set()
    for name, gradient in whole[1].items():
        assert close(chunked[1][name], gradient), name
    example = DistillationLoss(net, target, Aim(depth=3))
    small = DistillationLoss(net, target, Aim(depth=3), logits=logits)
    assert torch.allclose(torch.tensor(small.acceptance(window)), torch.tensor(example.acceptance(window)), atol=1e-6)


@pytest.mark.parametrize("kind", ["eagle3", "eagle3 with the target's head", "medusa"], indirect=True)
def test_chunks_give_the_gradients_of_the_whole_in_mixed_precision(target, written, recordings, kind):
    net = net_of(target, written, kind)
    window = record(target, *written, net.reads, recordings / "-".join(map(str, net.reads))).window(range(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole, chunked = gradients(net, target, window), gradients(net, target, window, logits=3 * KNOWN * 7)
    assert torch.allclose(chunked[0], whole[0], rtol=1e-2)
    for name, gradient in whole[1].items():
        assert (chunked[1][name] - gradient).norm() <= 0.02 * gradient.norm(), name


class LargestLogits(TorchDispatchMode):
    """The largest number of rows of any result that is as wide as the vocabulary, or `width` numbers."""

    def __init__(self, width: int = V):
        super().__init__()
        self.width, self.rows = width, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(each, torch.Tensor) and each.dim() and each.shape[-1] == self.width and each.shape != (32, V):  # the head itself
                self.rows = max(self.rows, each.numel() // self.width if each.is_floating_point() else 0)
        return found


@pytest.mark.parametrize("kind", ["eagle3", "eagle1", "medusa"], indirect=True)
def test_logits_of_all_positions_never_stand_in_memory(target, written, recordings, kind):
    net = net_of(target, written, kind)
    window = record(target, *written, net.reads, recordings / "-".join(map(str, net.reads))).window(range(4))
    rows = {}
    for logits in (3 * V * 5, 3 * V * 1000):
        with LargestLogits() as seen:
            gradients(net, target, window, logits=logits)
        rows[logits] = seen.rows
    assert rows[3 * V * 5] <= 5
    assert rows[3 * V * 1000] > 30  # the measure sees them where they are


def test_frames_of_all_places_never_stand_in_memory(target, written, recordings):
    """CTC makes the logits of 8 frames for every place, with the blank; 3 levels are sums over them."""
    net = net_of(target, written, "ctc")
    window = record(target, *written, net.reads, recordings / "-".join(map(str, net.reads))).window(range(4))
    rows = {}
    for logits in (V * 70, V * 10_000):
        with LargestLogits() as seen, LargestLogits(V + 1) as framed:
            gradients(net, target, window, logits=logits)
        rows[logits] = (seen.rows, framed.rows)
    assert max(rows[V * 70]) <= 70
    assert min(rows[V * 10_000]) > 200  # the measure sees them where they are


def test_a_level_of_one_head_is_counted_where_it_predicts(target, written, recordings):
    """By hand, from the logits of every level at all its places: KL and acceptance."""
    net = net_of(target, written, "ctc")
    window = record(target, *written, net.reads, recordings / "-".join(map(str, net.reads))).window(range(4))
    log_p = target.lm_head(window.last).log_softmax(-1)
    losses, acceptance = [], []
    with torch.no_grad():
        for level in unroll(net, window, target.get_input_embeddings(), target.lm_head, 3):
            log_q = level.logits.log_softmax(-1)
            p = log_p[:, level.after : level.after + log_q.shape[1]]
            counted = window.own[:, level.after + 1 :][:, : log_q.shape[1]]
            losses.append((p.exp() * (p - log_q)).sum(-1)[counted].mean())
            acceptance.append(torch.minimum(p.exp(), log_q.exp()).sum(-1)[counted].mean())
    for logits in (V * 70, V * 10_000):
        example = DistillationLoss(net, target, Aim(depth=3, decay=0.5), logits=logits)
        assert torch.allclose(example(window), (losses[0] + 0.5 * losses[1] + 0.25 * losses[2]) / 1.75, rtol=1e-5)
        assert torch.allclose(torch.tensor(example.acceptance(window))[:, 0], torch.stack(acceptance), atol=1e-5)


# --- a part of the vocabulary -----------------------------------------------------------------------------------------


def test_the_target_keeps_the_mass_of_values_that_are_not_drafted(target, written, recordings):
    """By hand over all values: KL and cross-entropy count drafted values by the target's own probabilities, the rest is rejected."""
    net = net_of(target, written, "eagle3 in part")
    window = record(target, *written, net.reads, recordings / "-".join(map(str, net.reads))).window(range(4))
    assert net.vocabulary.tolist() == sorted(net.vocabulary.tolist())
    loss = DistillationLoss(net, target, Aim(depth=2, decay=0.5))
    log_p = target.lm_head(window.last).log_softmax(-1)
    wanted, acceptance = [], []
    with torch.no_grad():
        for j, level in enumerate(unroll(net, window, target.get_input_embeddings(), target.lm_head, 2)):
            end = window.ids.shape[1] - 1
            log_q = level.logits[:, j : end - 1].log_softmax(-1)
            p = log_p[:, 1 + j : end]
            counted = window.own[:, 2 + j : end + 1]
            kl = (p[..., net.vocabulary].exp() * (p[..., net.vocabulary] - log_q)).sum(-1)
            wanted.append(kl[counted].mean())
            q = torch.zeros_like(p).index_copy(-1, net.vocabulary, log_q.exp())
            agreed = (p.argmax(-1) == net.vocabulary[log_q.argmax(-1)]).float()
            acceptance.append((torch.minimum(p.exp(), q).sum(-1)[counted].mean(), agreed[counted].mean()))
    assert torch.allclose(loss(window), (wanted[0] + 0.5 * wanted[1]) / 1.5, rtol=1e-4)
    assert torch.allclose(torch.tensor(loss.acceptance(window)), torch.tensor(acceptance), atol=1e-5)
    assert log_p[..., net.vocabulary].exp().sum(-1).max() < 0.999


@pytest.mark.parametrize("kind", ["eagle3 in part", "eagle3 with the target's head"], indirect=True)
def test_what_was_recorded_stands_for_the_targets_whole_head(target, written, recordings, kind):
    net = net_of(target, written, kind)
    window = record(target, *written, net.reads, recordings / "-".join(map(str, net.reads))).window(range(4))
    bare = replace(window, total=None, best=None)
    (loss, grads), (same, again) = gradients(net, target, window), gradients(net, target, bare)
    assert torch.allclose(loss, same, rtol=1e-5)
    assert all(close(grads[name], again[name]) for name in grads)
    example = DistillationLoss(net, target, Aim(depth=3))
    assert torch.allclose(torch.tensor(example.acceptance(window)), torch.tensor(example.acceptance(bare)), atol=1e-5)
    with LargestLogits() as seen:
        example(window).backward()
    assert seen.rows == 0  # the target's other rows are not needed


def test_rows_of_a_head_are_its_logits():
    """Also under Gemma's soft cap, and for a head with a bias."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    sizes = LLAMA | {"head_dim": 8, "final_logit_softcapping": 0.5}
    gemma, hidden, ids = Gemma2ForCausalLM(Gemma2Config(**sizes)).eval(), torch.randn(3, 32), torch.tensor([1, 7, 20])
    whole = 0.5 * torch.tanh(gemma.lm_head(hidden) / 0.5)
    assert torch.allclose(head_rows(gemma, ids)(hidden), whole[:, ids], atol=1e-6)
    biased = llama()
    biased.lm_head = torch.nn.Linear(32, V)
    assert torch.allclose(head_rows(biased, ids)(hidden), biased.lm_head(hidden)[:, ids], atol=1e-6)


# --- a shared head ----------------------------------------------------------------------------------------------------


@pytest.fixture
def sharing(target, written):
    return net_of(target, written, "eagle3 with the target's head")


def own_head(net: Eagle3, target) -> Eagle3:
    """The same net with a head of its own that holds the same rows."""
    other = Eagle3(**{**net.config, "shared_head": False})
    other.load_state_dict({**net.state_dict(), "lm_head.weight": target.lm_head.weight[net.vocabulary]})
    return other.eval()


def test_a_shared_head_is_the_targets_rows(target, written, recordings, sharing):
    window = record(target, *written, sharing.reads, recordings / "-".join(map(str, sharing.reads))).window(range(4))
    (loss, grads), (same, again) = (gradients(net, target, window) for net in (sharing, own_head(sharing, target)))
    assert torch.equal(loss, same)
    assert grads.keys() == again.keys() - {"lm_head.weight"}
    assert all(close(grads[name], again[name]) for name in grads)
    assert not any("lm_head" in name for name in (*sharing.state_dict(), *dict(sharing.named_parameters())))


def test_a_shared_head_is_not_saved_and_found_again(target, sharing, tmp_path):
    save_drafter(sharing, tmp_path / "drafter")
    assert not any("lm_head" in name for name in load_file(tmp_path / "drafter" / "model.safetensors"))
    inputs = random_prompt(5, 3)
    other = deepcopy(target)
    other.lm_head.weight.data.neg_()
    wanted, drafted = greedy(target, inputs, 12), {}
    found = load_drafter(tmp_path / "drafter")  # without its target
    for name, net in {"own": own_head(sharing, target), "saved": load_drafter(tmp_path / "drafter", target), "later": found}.items():
        out = mmspec.text.generate(target, inputs, net, max_new_tokens=12, draft_length=3)
        assert out.sequences.tolist() == wanted
        drafted[name] = (out.stats.drafted, out.stats.accepted)
    assert drafted["own"] == drafted["saved"] == drafted["later"]
    assert mmspec.text.generate(other, inputs, found, max_new_tokens=12, draft_length=3).sequences.tolist() == greedy(other, inputs, 12)
    assert torch.equal(found.lm_head.rows(), other.lm_head.weight[found.vocabulary])  # of the target it drafts for


def test_a_shared_head_follows_the_targets_dtype(target, sharing, tmp_path):
    save_drafter(sharing, tmp_path / "drafter")
    half = deepcopy(target).to(torch.bfloat16)
    net = load_drafter(tmp_path / "drafter", half)
    inputs = random_prompt(5, 3)
    plain = mmspec.text.generate(half, inputs, max_new_tokens=8)
    out = mmspec.text.generate(half, inputs, net, max_new_tokens=8, draft_length=3)
    assert out.sequences.shape == plain.sequences.shape
    assert net.lm_head.rows().dtype == torch.bfloat16


def test_a_shared_head_is_written_in_the_published_layout(target, sharing, tmp_path):
    export_speculators(sharing, tmp_path / "served", target, verifier_name="some/target")
    again = load_drafter(tmp_path / "served", target)
    assert isinstance(again.lm_head, torch.nn.Linear)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in own_head(sharing, target).state_dict().items())


def test_a_head_that_cannot_be_shared_is_refused(target, sharing):
    with pytest.raises(ValueError, match="shares the head of its target: call attach"):
        Eagle3(**sharing.config).own_logits(torch.zeros(1, 1, 32), None)
    with pytest.raises(ValueError, match=r"it cannot share the head; shared_head=False"):
        Eagle3(**{**sharing.config, "target_hidden": 64, "own_embedding": True})
    bare = llama()
    bare.lm_head = torch.nn.Identity()
    with pytest.raises(ValueError, match="that of LlamaForCausalLM cannot be shared"):
        sharing.attach(bare)
    with pytest.raises(ValueError, match="cannot be trained together with it: give it a head of its own"):
        Joint(sharing, target, Aim())


def test_training_a_part_with_a_shared_head_raises_acceptance(target, written, recordings, tmp_path, sharing):
    data = record(target, *written, sharing.reads, recordings / "-".join(map(str, sharing.reads)))
    example, rows = DistillationLoss(sharing, target, Aim(depth=2), logits=3 * KNOWN * 8), deepcopy(sharing.lm_head.rows())
    before = example.acceptance(data.window(range(12)))
    fit(example, lambda m, turn: m(data.draw(turn, 6)), Fit(steps=30, lr=1e-2, warmup=5), tmp_path / "run.pt")
    after = example.acceptance(data.window(range(12)))
    assert all(now[0] > then[0] and now[1] > then[1] for now, then in zip(after, before, strict=True)), (before, after)
    assert torch.equal(sharing.lm_head.rows(), rows)


def test_a_target_in_half_precision_trains_a_drafter_in_single(target, written, tmp_path):
    half = deepcopy(target).to(torch.bfloat16)
    losses = {}
    for name, model in {"half": half, "single": target}.items():
        for kind in ("eagle3", "medusa", "hydra"):
            net = net_of(target, written, kind)
            window = record(model, *written, net.reads, tmp_path / name / "-".join(map(str, net.reads))).window(range(4))
            losses[name, kind] = gradients(net, model, window)[0].item()
    for kind in ("eagle3", "medusa", "hydra"):
        assert losses["half", kind] == pytest.approx(losses["single", kind], rel=0.1)


# --- defaults ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide():
    """A target of 70,000 values."""
    return llama(vocab_size=70_000, hidden_size=8, intermediate_size=8, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=4)


@pytest.mark.parametrize(
    ("vocabulary", "options", "values", "shared"),
    [
        (None, {}, 32_768, True),
        (500, {}, 500, True),
        (0, {}, 70_000, True),
        (None, {"shared_head": False}, 32_768, False),
        (None, {"values": 64}, 64, True),
    ],
)
def test_a_large_vocabulary_is_drafted_in_part_with_the_targets_head(wide, vocabulary, options, values, shared):
    net = net_to_train("eagle3", wide, options, vocabulary)
    assert (net.config["values"], net.config["shared_head"]) == (values, shared)
    begin_training(net, wide, torch.tensor([69_999, 69_999, 4, 60_000]))
    assert net.lm_head.out_features == values
    if values < 70_000:
        written = [4, 60_000, 69_999]
        assert net.vocabulary.tolist() == sorted([*written, *[i for i in range(values) if i not in written][: values - 3]])
    head = net.lm_head.rows() if shared else net.lm_head.weight
    assert torch.equal(head, wide.lm_head.weight if net.vocabulary is None else wide.lm_head.weight[net.vocabulary])


def test_a_small_vocabulary_is_drafted_whole_with_a_head_of_its_own(target):
    net = net_to_train("eagle3", target)
    assert (net.config["values"], net.config["shared_head"], net.vocabulary) == (V, False, None)


def test_a_vocabulary_that_nothing_reads_is_refused(target):
    with pytest.raises(ValueError, match="vocabulary is 20, but medusa drafts all 300 values"):
        net_to_train("medusa", target, vocabulary=20)
    with pytest.raises(ValueError, match="vocabulary is 301: give 1 to 300 values, or 0 for all"):
        net_to_train("eagle3", target, vocabulary=301)
    assert isinstance(net_to_train("medusa", target), Medusa)


# --- memory -----------------------------------------------------------------------------------------------------------

SIZE = TrainingSize(windows=1000, length=100, rows=8, levels=4, states="bfloat16")


def test_the_estimate_counts_what_is_trained_and_recorded(target, tmp_path):
    small, whole = (net_to_train("eagle3", target, vocabulary=values) for values in (KNOWN, 0))
    found, more = (training_memory(net, target, SIZE, tmp_path / "not there yet") for net in (small, whole))
    assert found.loaded == sum(p.numel() * 4 for p in target.parameters())
    assert found.disk == 1000 * 100 * (4 * 32 * 2 + 13)  # four states, and ids, totals and marks
    twice = training_memory(small, target, replace(SIZE, states="float32"), tmp_path)
    assert twice.disk - found.disk == 1000 * 100 * 4 * 32 * 2
    assert more.needed["drafter, gradients and optimiser"] == 16 * sum(p.numel() for p in whole.parameters())
    assert more.needed["logits of a chunk"] > found.needed["logits of a chunk"]
    assert "\n" not in str(found)
    assert "about" in str(found)
    found.check()


@pytest.mark.parametrize(
    ("available", "free", "said"),
    [
        (2 * 10**9, 10**9, None),
        (10**9, 10**9, r"training needs about 1.50 GB of memory, but 1.00 GB are available: take fewer rows"),
        (2 * 10**9, 10**8, r"the states need about 0.50 GB of disk space, but 0.10 GB are free: take fewer windows"),
    ],
)
def test_too_little_memory_is_refused_in_one_line(available, free, said):
    estimate = TrainingMemory(10**9, {"drafter": 10**9, "logits": 5 * 10**8}, available, 5 * 10**8, free)
    if said is None:
        return estimate.check()
    with pytest.raises(ValueError, match=said) as caught:
        estimate.check()
    assert "\n" not in str(caught.value)
    assert "--force-memory" in str(caught.value)


def test_processes_of_one_machine_share_its_memory(target, tmp_path, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10**9))
    net = net_to_train("eagle3", target)
    assert training_memory(net, target, SIZE, tmp_path).available == 10**9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert training_memory(net, target, SIZE, tmp_path).available == 10**9 // 4
