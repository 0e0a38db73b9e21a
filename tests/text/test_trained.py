"""A trained drafter by its folder: in configs, on the command line, in a request."""

import json

import pytest
import torch

import mmspec
from mmspec.cli import app
from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.checkpoints.published import export_speculators
from mmspec.loading.text import load_pair, named_drafter
from mmspec.run.config import Config, DrafterSection, RunSection


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An EAGLE-3 of the mini's, untrained, in mmspec's layout and, beside it, in that of `speculators`."""
    target, root = mmspec.load("text").target, tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    net = new_net("eagle3", target, {"values": 200})
    net.know(torch.arange(0, 2000, 10))
    net.start_from(target)
    save_drafter(net, root / "own")
    export_speculators(net, root / "served", target, verifier_name="mini")
    return root


def pair(**section):
    return load_pair(Config(drafter=DrafterSection(kind="trained", **section), run=RunSection(max_new_tokens=10)))


@pytest.mark.parametrize("layout", ["own", "served"])
def test_a_config_names_its_folder(folder, layout):
    made = pair(path=str(folder / layout), length=3)
    inputs = made.inputs(list(made.examples[:2]))
    out, plain = made.generate(inputs), made.generate(inputs, drafter=None)
    assert out.sequences.tolist() == plain.sequences.tolist()
    assert out.stats.drafted > 0
    assert made.drafter_name == str(folder / layout)


def test_it_grows_trees_and_stops_where_it_is_unsure(folder):
    made = pair(path=str(folder / "own"), tree=[2, 2])
    inputs = made.inputs(list(made.examples[:1]))
    plain = made.generate(inputs, drafter=None, tree=None).sequences.tolist()
    tree = made.generate(inputs)
    assert tree.sequences.tolist() == plain
    most, sure = (pair(path=str(folder / "own"), length=4, options={"stop_below": p}).generate(inputs) for p in (0.0, 1.0))
    assert most.sequences.tolist() == sure.sequences.tolist() == plain
    assert sure.stats.drafted < most.stats.drafted


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({}, "drafter 'trained' needs path"),
        ({"path": "nowhere"}, r"nowhere/config.json does not exist"),
        ({"path": "own", "options": {"beams": 2}}, "unknown key 'beams' for drafter 'trained'; valid: stop_below, states, layer_ids"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(section, said):
    with pytest.raises(ValueError, match=said):
        pair(**section)


def test_the_command_line_tells_drafters_from_models(folder, tmp_path, capsys):
    mmspec.load("text").target.save_pretrained(tmp_path / "model")
    assert named_drafter(str(folder / "own")) == ("trained", str(folder / "own"))
    assert named_drafter(str(folder / "served"))[0] == "trained"
    assert named_drafter(str(tmp_path / "model"))[0] == "model"
    with pytest.raises(SystemExit) as end:
        app(["text", "Once upon a time", "--drafter", str(folder / "own"), "--max-new-tokens", "8", "--json"])
    assert end.value.code == 0
    assert json.loads(capsys.readouterr().out)["drafter"] == str(folder / "own")
