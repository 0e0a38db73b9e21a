"""Drafters trained for every image family: taught by the target's own pictures, saved, loaded and drawn with."""

import json
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.models.target import HFTarget
from mmspec.train.pictures.drawn import DrawnPictures
from mmspec.train.pictures.forward import recorded_states
from mmspec.train.pictures.learners import SmallImageLoss, WrittenPictures, picture_net, picture_net_loss
from mmspec.vision.checkpoints.drafters import load_image_drafter, save_image_drafter
from mmspec.vision.codes.shared_layers import SharedLayers
from tests.commands import refused, runner
from tests.forked import Started
from tests.vision import small_checkpoints, small_models
from tests.vision.small_models import CASES

ROOT = Path(__file__).parents[2]
KINDS = ("eagle1", "eagle3", "model")


def prompts_of(case, rows):
    """The grids of GLM-Image's prompts are no row each: without them its own are taken."""
    found = CASES[case].prompts(rows)
    return {name: found[name] for name in ("input_ids", "attention_mask")} if case == "glm_image" else found


def scale_of(case):
    return 2.0 if CASES[case].guided else None


def drawn_by(model, case):
    prompts = prompts_of(case, 3)
    out = mmspec.vision.generate(model, prompts, guidance=scale_of(case), seed=1, window=8)
    return DrawnPictures(model, prompts, out.sequences, CASES[case].guided)


def trained(kind, drawn, steps=3):
    """A drafter after some steps on all pictures, and the losses; of pairs, with prompts and without in turn."""
    torch.manual_seed(0)
    model = drawn.model
    model.model.requires_grad_(False)
    if kind == "model":
        net = SharedLayers.spread(model, 1)
        loss, lesson = SmallImageLoss(net, model), lambda conditional: WrittenPictures.of(drawn, range(3), conditional)
    else:
        net = picture_net(kind, model)
        loss, lesson = picture_net_loss(net, model, depth=2), lambda conditional: drawn.window(range(3), conditional, net.reads)
    optimizer, losses = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=1e-2), []
    for step in range(steps):
        value = loss(lesson(not drawn.guided or step % 2 == 0))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    taken = loss.acceptance(lesson(True))
    return net.eval(), losses, taken


@pytest.fixture(scope="module", params=CASES)
def family(request):
    model = CASES[request.param].make()
    return request.param, model, drawn_by(model, request.param)


def test_states_are_those_of_a_generation(family):
    _, model, drawn = family
    prompt, values = drawn.prompt(range(3), True), drawn.values(range(3))
    last, first = recorded_states(model, prompt, values, (-1, 1))
    session, pending = HFTarget(model.model, model).begin(prompt)
    session.watch([-1, 1])
    scored = session.score(pending.extend_chain(values[:, :-1], torch.full((3,), values.shape[1] - 1)))
    torch.testing.assert_close(torch.cat([last, first], -1), scored.hidden, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_drafter_draws_plain_decodings_pictures(family, kind, tmp_path):
    """Trained for three steps, saved, and read from its folder: one row and three ragged ones, with guidance and without."""
    case, model, drawn = family
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    net, losses, taken = trained(kind, drawn)
    assert all(torch.equal(weight, before[name]) for name, weight in model.model.state_dict().items())
    assert len(set(losses)) == 3
    assert all(0 < each <= 1 for each, _ in taken)
    save_image_drafter(net, model, tmp_path / "drafter")
    exact = {} if kind == "model" else {"accept": "exact"}
    for rows, scale in {(1, None), (3, scale_of(case))}:
        prompts = prompts_of(case, rows)
        plain = mmspec.vision.generate(model, prompts, method="plain", guidance=scale, seed=[4, 9, 2][:rows])
        out = mmspec.vision.generate(model, prompts, tmp_path / "drafter", guidance=scale, seed=[4, 9, 2][:rows], window=6, **exact)
        assert torch.equal(out.sequences, plain.sequences)
        assert out.stats.exactness == "token-exact"
        assert out.stats.drafted > 0


def test_all_of_the_targets_layers_are_always_right(family):
    case, model, _ = family
    whole = SharedLayers(model, range(model.layers))
    for method in ("assisted", "assisted-jacobi"):
        out = mmspec.vision.generate(model, prompts_of(case, 3), whole, method=method, guidance=scale_of(case), seed=1, window=5)
        assert out.stats.accepted == out.stats.drafted > 0


def test_training_lowers_the_loss():
    model = CASES["chameleon"].make()
    drawn = drawn_by(model, "chameleon")
    for kind in KINDS:
        _, losses, _ = trained(kind, drawn, steps=24)
        assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_a_drafter_of_another_target_is_refused(tmp_path):
    model, case = CASES["chameleon"].make(), CASES["chameleon"]
    save_image_drafter(SharedLayers(model, [0]), model, tmp_path / "layers")
    save_image_drafter(picture_net("eagle1", model), model, tmp_path / "eagle")
    other = case.make()
    with torch.no_grad():
        other.model.lm_head.weight.copy_(torch.randn_like(other.model.lm_head.weight))
    mistakes = {"codes": CASES["janus"].make(), "values": CASES["lumina"].make(), "logits": other}
    for folder in (tmp_path / "layers", tmp_path / "eagle"):
        for words, wrong in mistakes.items():
            with pytest.raises(ValueError, match=f"is for another target, whose (model|{words})") as error:
                load_image_drafter(folder, wrong)
            assert "\n" not in str(error.value)
        half = case.make()
        half.model.to(torch.bfloat16)
        assert next(load_image_drafter(folder, half).parameters()).dtype == torch.bfloat16


def test_a_broken_folder_is_refused(tmp_path):
    model, case = CASES["chameleon"].make(), CASES["chameleon"]
    with pytest.raises(ValueError, match="no folder with a drafter of images"):
        mmspec.vision.generate(model, case.prompts(1), tmp_path / "none")
    save_image_drafter(SharedLayers(model, [0]), model, tmp_path / "layers")
    (tmp_path / "layers" / "config.json").write_text(json.dumps({"mmspec_image_layers": [5]}))
    with pytest.raises(ValueError, match="this target has 0 to 1"):
        load_image_drafter(tmp_path / "layers", model)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is no drafter"):
        save_image_drafter(SharedLayers(model, [0]), model, tmp_path / "mine")
    with pytest.raises(ValueError, match="1 to 1 layers"):
        SharedLayers.spread(model, 2)


def test_layers_follow_the_targets_size():
    model = small_models.Chameleon(small_models.chameleon(), None, small_models.tiles)
    net, prompts = SharedLayers(model, [1]), CASES["chameleon"].prompts(2)
    plain = mmspec.vision.generate(model, prompts, method="plain", size=(6, 8), seed=2)
    assert torch.equal(plain.tokens, mmspec.vision.generate(model, prompts, net, size=(6, 8), seed=2).tokens)


RECIPES = {
    "eagle1": (small_checkpoints.chameleon, ("--guidance", "3", "--negative", "low", "--top-k", "40"), "eagle"),
    "eagle3": (lambda home: (small_checkpoints.imagegpt(home), None), (), "eagle"),
    "model": (small_checkpoints.llamagen, ("--guidance", "2"), "assisted-jacobi"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_recipe_writes_what_the_command_draws_with(kind, tmp_path, capsys):
    make, options, usual = RECIPES[kind]
    path, decoder = make(tmp_path)
    prompts, texts = tmp_path / "prompts.txt", kind == "eagle1"
    prompts.write_text("a red shoe\na boat in green water\n")
    words = [
        "--smoke",
        "--model",
        path,
        "--kind",
        kind,
        "--out",
        tmp_path / "drafter",
        *(("--prompts", prompts) if texts else ()),
        *options,
    ]
    done = Started(ROOT / "vision/train_drafter.py", *words, cwd=tmp_path, folder=tmp_path).finish(timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    card = (tmp_path / "drafter" / "card.md").read_text()
    assert f"--kind {kind}" in card
    assert "their target's terms" in card
    (tmp_path / "pictures").mkdir()
    draw = runner(capsys, tmp_path / "pictures", "image", "mini", "out.png")
    prompt = {"eagle1": ["a red shoe"], "eagle3": [], "model": ["3"]}[kind]
    args = [*prompt, *(("--decoder", decoder) if decoder else ()), *options]
    code, out, err, _ = draw(*args, "--drafter", tmp_path / "drafter", "--compare", "plain", "--seed", 3, "--json", model=path)
    assert code == 0, err
    found = json.loads(out)
    assert found["method"] == usual
    assert found["drafted"] > 0
    if kind == "model":
        assert found["codes"] == found["compare"]["codes"]
    (tmp_path / "pictures" / "out.png").unlink()
    refused(draw(*args, "--drafter", tmp_path / "drafter", "--method", "jacobi", model=path), "method 'jacobi' does not read")
    if kind != "eagle1":  # the three kinds read the folder of drawn pictures in the same way
        return
    again = Started(ROOT / "vision/train_drafter.py", *words, "--temperature", 0.5, cwd=tmp_path, folder=tmp_path).finish(timeout=240)
    assert again.returncode == 2
    assert "holds pictures drawn with temperature 1.0, not 0.5" in again.stderr
