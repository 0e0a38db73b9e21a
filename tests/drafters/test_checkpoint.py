"""Drafters on disk: what is written is read back, a broken file is named in one line, and nothing is loaded or written halfway."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec.drafters.body.systems import Clover
from mmspec.drafters.checkpoints.load import KEY, fill, is_drafter, load_drafter, save_drafter
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.features.eagle3_parts import DraftVocabulary
from mmspec.drafters.heads.medusa import Amphista, Hydra, Medusa, Recurrent
from mmspec.utils import weights as files
from tests.drafters.runs import greedy, random_prompt

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
MAKE = {
    "medusa": lambda: Medusa(32, 2, layers=2),
    "medusa-some-values": lambda: Medusa(32, 2, own_heads=20, size=50),
    "hydra": lambda: Hydra(32, 3, layers=2),
    "recurrent": lambda: Recurrent(32, width=16),
    "amphista": lambda: Amphista(32, 3),
    "clover": lambda: Clover((1, 3), SIZES, 50, 30, layers=("state", "pair"), step_options={"heads": 3}),
    "eagle1": lambda: Eagle1(SIZES),
    "eagle3": lambda: Eagle3((1, 2, 3), SIZES, 50),
    "eagle3-variants": lambda: Eagle3(
        (0, -1), SIZES, 50, 30, norm_before_residual=True, own_embedding=True, norm_before_fc=True, fc_norm=True, norm_output=True
    ),
}


def lively(net):
    torch.manual_seed(3)
    for parameter in net.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    if isinstance(net, DraftVocabulary) and net.vocabulary is not None:
        net.know(torch.randperm(50)[:30].sort().values)
    return net


def state(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def same(net, before):
    after = net.state_dict()
    return after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)


@pytest.fixture
def saved(tmp_path):
    """A saved eagle3 and its folder."""
    net = lively(MAKE["eagle3-variants"]())
    save_drafter(net, tmp_path / "drafter")
    return net, tmp_path / "drafter"


@pytest.mark.parametrize("kind", MAKE)
def test_what_is_saved_is_loaded(tmp_path, kind):
    net = lively(MAKE[kind]())
    save_drafter(net, tmp_path / "drafter")
    found = load_drafter(tmp_path / "drafter")
    assert type(found) is type(net)
    assert found.config == net.config
    assert same(found, state(net))
    assert not found.training
    assert is_drafter(tmp_path / "drafter")
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]  # nothing temporary is left


def test_half_precision_on_disk(tmp_path):
    save_drafter(lively(MAKE["eagle3"]()), tmp_path / "drafter", torch.bfloat16)
    stored = load_file(tmp_path / "drafter" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16, torch.int64, torch.bool}
    assert load_drafter(tmp_path / "drafter").fc.weight.dtype == torch.float32


def test_bytes_on_disk(tmp_path, saved):
    """Every matrix within half a step of its row; whole numbers and flags as they were; written again, the same bytes."""
    net, folder = saved
    save_drafter(net, tmp_path / "small", torch.int8)
    found = load_drafter(tmp_path / "small")
    for name, tensor in net.state_dict().items():
        back = found.state_dict()[name]
        assert back.dtype == tensor.dtype
        if tensor.dim() < 2:
            assert torch.equal(back, tensor.half().float() if tensor.is_floating_point() else tensor)
        else:
            assert ((back - tensor).abs().amax(1) <= tensor.abs().amax(1) / 254 + 1e-7).all()
    big, small = (path / "model.safetensors" for path in (folder, tmp_path / "small"))
    assert small.stat().st_size < 0.4 * big.stat().st_size
    save_drafter(found, tmp_path / "again", torch.int8)
    assert same(load_drafter(tmp_path / "again"), state(found))


def test_bytes_without_their_scale_are_refused(tmp_path):
    save_drafter(lively(MAKE["medusa"]()), tmp_path / "drafter", torch.int8)
    path = tmp_path / "drafter" / "model.safetensors"
    stored = load_file(path)
    scale = next(name for name in stored if name.endswith(".scale"))
    save_file({name: tensor for name, tensor in stored.items() if name != scale}, path)
    with pytest.raises(ValueError, match=rf"tensor {scale.removesuffix('.scale')} is torch.int8 .* but torch.float32 .* is needed"):
        load_drafter(tmp_path / "drafter")


def test_a_loaded_drafter_is_a_drafter_of_generate(big, tmp_path):
    save_drafter(lively(MAKE["eagle3"]()), tmp_path / "drafter")
    inputs = random_prompt(5, 3)
    out = mmspec.text.generate(big, inputs, drafter=mmspec.load_drafter(tmp_path / "drafter", big), max_new_tokens=12, draft_length=3)
    assert out.sequences.tolist() == greedy(big, inputs, 12)
    assert out.stats.drafted > 0


# --- broken files ----------------------------------------------------------------------------------------------------------------------


def change(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def config(folder, text):
    (folder / "config.json").write_text(text)


def recast(tensors):
    tensors["fc.weight"] = tensors["fc.weight"].long()


def edited(folder, **changes):
    config(folder, json.dumps(json.loads((folder / "config.json").read_text()) | changes))


BROKEN = {
    "truncated": (truncate, "model.safetensors is truncated or not safetensors"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "model.safetensors is truncated or not safetensors"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "holds no weights: the drafter's model.safetensors is missing"),
    "missing tensor": (lambda f: change(f, lambda t: t.pop("norm.weight")), r"tensor norm.weight of shape \(32,\) is missing"),
    "extra tensor": (
        lambda f: change(f, lambda t: t.update(more=torch.zeros(2, 3))),
        r"tensor more of shape \(2, 3\) belongs to no part of this eagle3 drafter",
    ),
    "wrong shape": (
        lambda f: change(f, lambda t: t.update({"fc.weight": torch.zeros(32, 60)})),
        r"tensor fc.weight has shape \(32, 60\), but \(32, 64\) is needed",
    ),
    "wrong dtype": (lambda f: change(f, recast), r"tensor fc.weight is torch.int64 \(32, 64\), but torch.float32 \(32, 64\) is needed"),
    "bad map": (lambda f: change(f, lambda t: t["d2t"].add_(40)), "tensor d2t leads to target ids"),
    "bad JSON": (lambda f: config(f, '{"mmspec_drafter": '), "config.json is not JSON"),
    "a list": (lambda f: config(f, "[1]"), "config.json holds list, but a mapping is needed"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json does not exist: give the folder of a drafter"),
    "unknown kind": (lambda f: edited(f, **{KEY: "eagle9"}), "does not describe a drafter: unknown drafter kind 'eagle9'; valid: .*eagle3"),
    "odd kind": (lambda f: edited(f, **{KEY: ["eagle3"]}), "does not describe a drafter"),
    "unknown option": (lambda f: edited(f, depth=3), "does not describe a drafter: .*'depth'"),
    "odd option": (lambda f: edited(f, values=80), "values is 80, but the target has 50"),
    "no layout": (lambda f: config(f, '{"num_hidden_layers": 4}'), "holds no drafter of a known layout: mmspec's own, speculators"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_told_in_one_line(saved, name):
    _, folder = saved
    damage, said = BROKEN[name]
    damage(folder)
    with pytest.raises(ValueError, match=said) as error:
        load_drafter(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_what_is_no_folder_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match="file is a file: give the folder of a drafter"):
        load_drafter(tmp_path / "file")
    with pytest.raises(ValueError, match=r"nothing/config.json does not exist"):
        load_drafter(tmp_path / "nothing")
    assert not is_drafter(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a pickle", "is truncated, or more than a PyTorch state_dict"),
        (b"", "is truncated, or more than a PyTorch state_dict"),
        ([1, 2], "holds no mapping from names to tensors"),
        ({"fc.weight": "text"}, "holds no mapping from names to tensors"),
        ({"fc.weight": torch.nn.Linear(2, 2)}, "is truncated, or more than a PyTorch state_dict"),  # would run code when opened
    ],
)
def test_a_broken_pickle_is_told_in_one_line(tmp_path, content, said):
    config(tmp_path, json.dumps({"draft_vocab_size": 50}))
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=said) as error:
        load_drafter(tmp_path)
    assert "\n" not in str(error.value)
    torch.save({"fc.weight": torch.zeros(400)}, path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(ValueError, match="is truncated"):
        load_drafter(tmp_path)


@pytest.mark.parametrize("name", ["missing tensor", "extra tensor", "wrong shape", "wrong dtype", "bad map"])
def test_a_net_that_was_to_be_filled_stays_as_it_was(saved, name):
    net, folder = saved
    BROKEN[name][0](folder)
    before = state(net)
    for parameter in net.parameters():
        parameter.data.add_(1)
    other = state(net)
    with pytest.raises(ValueError, match=BROKEN[name][1]):
        fill(net, load_file(folder / "model.safetensors"), folder)
    assert same(net, other)
    assert not same(net, before)


def test_weights_in_several_files(saved):
    net, folder = saved
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for part in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == part}, folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert same(load_drafter(folder), state(net))
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(ValueError, match=r"part-1.safetensors does not exist: a part of the drafter's weights is missing"):
        load_drafter(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../../elsewhere.safetensors"}}))
    with pytest.raises(ValueError, match="its files must be in the same folder"):
        load_drafter(folder)
    index.write_text("{}")
    with pytest.raises(ValueError, match="has no weight_map"):
        load_drafter(folder)


# --- writing ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["save_file", "replace"])
def test_a_failure_while_writing_leaves_the_old_drafter(saved, monkeypatch, step):
    net, folder = saved
    before = state(net)
    for parameter in net.parameters():
        parameter.data.add_(1)

    def fails(source, *rest, **options):
        if step == "save_file" or ".new" in str(source):
            raise OSError("the disk is full")
        return replaced(source, *rest)

    replaced = files.os.replace
    monkeypatch.setattr(files if step == "save_file" else files.os, step, fails)
    with pytest.raises(OSError, match="the disk is full"):
        save_drafter(net, folder)
    monkeypatch.undo()
    assert same(load_drafter(folder), before)
    assert [path.name for path in folder.parent.iterdir()] == ["drafter"]
    save_drafter(net, folder)
    assert same(load_drafter(folder), state(net))


def test_a_folder_of_something_else_is_not_replaced(big, tmp_path):
    big.save_pretrained(tmp_path / "model")
    for folder in (tmp_path, tmp_path / "model", tmp_path / "model" / "config.json"):
        with pytest.raises(ValueError, match="exists and is no drafter: it would be replaced; give a new folder"):
            save_drafter(MAKE["medusa"](), folder)
    assert (tmp_path / "model" / "model.safetensors").exists()
    (tmp_path / "empty").mkdir()
    save_drafter(MAKE["medusa"](), tmp_path / "empty")
    save_drafter(MAKE["medusa"](), tmp_path / "deep" / "er")
