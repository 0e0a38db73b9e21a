"""What is not finite stops training in one line that names it, and is neither saved nor loaded."""

from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.checkpoints.published import export_speculators
from mmspec.train import Fit, fit
from mmspec.train.on_policy_text import Writing, write_own_text
from mmspec.train.record import record
from mmspec.train.states.disk import RecordingSettings, chunk_file, open_recording, write_chunk
from mmspec.train.states.window import RecordedWindow
from mmspec.utils.weights import first_not_finite
from tests.conftest import llama
from tests.text.test_own_text import PROMPTS, Padder
from tests.train.test_loop import line, squares


@pytest.fixture(scope="module")
def target():
    return llama(3, seed=0).requires_grad_(False)


def text(windows: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, 50, (windows, 9), generator=torch.Generator().manual_seed(0))
    return ids, torch.ones_like(ids, dtype=torch.bool)


def in_one_line(caught) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- the check --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("wrong", ["nan", "inf", "-inf"])
def test_the_first_tensor_that_is_not_finite_is_named(dtype, wrong):
    tensors = {name: torch.ones(3, 5).to(dtype) for name in ("a", "b", "c")}
    assert first_not_finite(tensors.items()) is None
    planted = torch.ones(3, 5)
    planted[2, 1] = float(wrong)
    tensors["b"] = tensors["c"] = planted.to(dtype)
    assert first_not_finite(tensors.items()) == "b"


def test_integers_empty_tensors_and_tensors_without_data_pass():
    tensors = {"a": torch.tensor([1]), "b": torch.zeros(0), "c": torch.zeros(3, device="meta"), "d": torch.zeros((), dtype=torch.bool)}
    assert first_not_finite(tensors.items()) is None


# --- a target and its states ------------------------------------------------------------------------------------------


def test_a_target_with_a_bad_weight_neither_writes_nor_is_recorded(target, tmp_path):
    broken = deepcopy(target)
    broken.model.layers[1].mlp.up_proj.weight.data[3, 2] = float("nan")
    plan = Writing(opening=4, new=3, chunk=2)
    said = r"weight model.layers.1.mlp.up_proj.weight of the target \(LlamaForCausalLM\) holds NaN or infinity"
    with pytest.raises(ValueError, match=said) as caught:
        write_own_text(broken, Padder(), PROMPTS, plan, tmp_path / "text")
    in_one_line(caught)
    with pytest.raises(ValueError, match=said):
        record(broken, *text(), (1,), tmp_path / "states")
    assert not list(tmp_path.rglob("*.*"))


def test_a_target_that_overflows_is_refused_by_the_states_number(target, tmp_path):
    broken = deepcopy(target)
    broken.model.layers[0].mlp.down_proj.weight.data.mul_(3e37)  # every weight is finite
    with pytest.raises(
        ValueError, match="hidden state 1 of window 0 holds NaN or infinity at position 0: check the target's weights"
    ) as caught:
        record(broken, *text(), (1,), tmp_path / "states")
    in_one_line(caught)
    assert [path.name for path in (tmp_path / "states").iterdir()] == ["states.json"]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_the_state_the_window_and_the_position_are_named(tmp_path, wrong):
    settings = RecordingSettings(states=(4, 7, 9), dtype="float32", windows=20, rows=4)
    ids, own = text(4)
    features, last = torch.zeros(4, 9, 16), torch.zeros(4, 9, 8)
    features[3, 5, 9] = wrong  # the second state
    open_recording(tmp_path, settings)
    with pytest.raises(ValueError, match="hidden state 7 of window 11 holds NaN or infinity at position 5"):
        write_chunk(tmp_path, 8, RecordedWindow(ids, features, last, own), settings)
    assert not chunk_file(tmp_path, 8).exists()


def test_a_recording_that_was_damaged_is_refused_where_it_is_read(target, tmp_path):
    folder = tmp_path / "states"
    record(target, *text(), (1,), folder, rows=8)
    path = chunk_file(folder, 16)
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    tensors["state-1"][1, 4, 3] = float("nan")
    save_file(tensors, tmp_path / "other")
    (tmp_path / "other").rename(path)
    data = record(target, *text(), (1,), folder, rows=8)
    data.window([0, 16, 18])
    with pytest.raises(ValueError, match="hidden state 1 of window 17 holds NaN or infinity at position 4: delete") as caught:
        data.window([0, 17])
    assert str(folder) in in_one_line(caught)


# --- training ---------------------------------------------------------------------------------------------------------

PLAN = Fit(steps=6, lr=0.1, warmup=0, checkpoint_every=2)


def test_a_loss_stops_by_its_step_and_the_last_checkpoint_stays(tmp_path):
    path = tmp_path / "run.pt"
    with pytest.raises(FloatingPointError, match="the loss of step 4 is nan") as caught:
        fit(line(), lambda m, turn: squares(m, turn) * (float("nan") if turn == 3 else 1.0), PLAN, path)
    in_one_line(caught)
    assert torch.load(path)["step"] == 2
    assert len(fit(line(), squares, PLAN, path)) == 4  # and training goes on from there


def test_a_gradient_stops_by_name(tmp_path):
    """sqrt at 0: the loss is 0, its slope is not finite."""
    with pytest.raises(FloatingPointError, match="the gradient of weight holds NaN or infinity at step 1") as caught:
        fit(line(), lambda m, turn: m.weight.mul(0.0).sum().sqrt(), PLAN, tmp_path / "run.pt")
    in_one_line(caught)
    assert not list(tmp_path.iterdir())


def test_a_weight_is_never_saved(tmp_path):
    def loss(model, turn):
        value = squares(model, turn)
        if turn == 1:
            model.bias.data.fill_(float("inf"))  # the loss and the gradients of this step are finite
        return value

    with pytest.raises(FloatingPointError, match=r"weight bias holds NaN or infinity after step 2: .*run.pt is not written") as caught:
        fit(line(), loss, PLAN, tmp_path / "run.pt")
    in_one_line(caught)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("part", "name"), [("model", "weight"), ("optimizer", "exp_avg of the optimiser")])
def test_a_checkpoint_is_not_loaded(tmp_path, part, name):
    path = tmp_path / "run.pt"
    fit(line(), squares, Fit(steps=2, lr=0.1, warmup=0), path)
    state = torch.load(path)
    (state["model"]["weight"] if part == "model" else state["optimizer"]["state"][0]["exp_avg"])[0, 1] = float("nan")
    torch.save(state, path)
    model = line()
    with pytest.raises(ValueError, match=rf"run.pt: tensor {name} holds NaN or infinity; delete it") as caught:
        fit(model, squares, PLAN, path)
    in_one_line(caught)
    assert torch.equal(model.weight, line().weight)


# --- a drafter's files ------------------------------------------------------------------------------------------------


def drafter(target, kind: str, place: str, value: float):
    torch.manual_seed(0)
    net = new_net(kind, target)
    dict(net.named_parameters())[place].data.flatten()[5] = value
    return net


@pytest.mark.parametrize(("kind", "place"), [("eagle3", "midlayer.mlp.up_proj.weight"), ("medusa", "blocks.1.0.linear.bias")])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.int8])
def test_a_drafter_is_not_saved_and_what_was_there_stays(target, tmp_path, kind, place, dtype):
    save_drafter(new_net(kind, target), tmp_path / "drafter")
    before = (tmp_path / "drafter" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=rf"tensor {place}(.scale)? holds NaN or infinity in .* nothing is written") as caught:
        save_drafter(drafter(target, kind, place, float("nan")), tmp_path / "drafter", dtype)
    in_one_line(caught)
    assert (tmp_path / "drafter" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_weights_that_overflow_on_disk_are_refused(target, tmp_path):
    net = drafter(target, "eagle3", "fc.weight", 1e5)
    with pytest.raises(ValueError, match=r"tensor fc.weight holds NaN or infinity in torch.float16"):
        save_drafter(net, tmp_path / "drafter", torch.float16)
    with pytest.raises(ValueError, match=r"tensor fc.weight holds NaN or infinity in torch.float16"):
        export_speculators(net, tmp_path / "drafter", target, verifier_name="big", dtype=torch.float16)
    assert not list(tmp_path.iterdir())
    save_drafter(net, tmp_path / "drafter", torch.bfloat16)
    assert load_drafter(tmp_path / "drafter").fc.weight.max() > 9e4


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
@pytest.mark.parametrize("wrong", [float("nan"), float("-inf")])
def test_a_drafter_is_not_loaded(target, tmp_path, kind, wrong):
    save_drafter(new_net(kind, target), tmp_path / "drafter")
    path = tmp_path / "drafter" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].flatten()[3] = wrong
    save_file(tensors, path)
    with pytest.raises(ValueError, match=rf"drafter: tensor {name} holds NaN or infinity: the file is damaged") as caught:
        load_drafter(tmp_path / "drafter", target)
    in_one_line(caught)
