"""`mmspec check` for pictures, continuous tokens, speech, recommendations and models that functions return."""

import json
import sys
from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec.bench.check import modalities
from mmspec.cli import app
from mmspec.core.rules.lossy.always_accept import AlwaysAccept
from tests.families import FAMILIES, build


def run(capsys, *args):
    with pytest.raises(SystemExit) as stopped:
        app(["check", *args, "--json"])
    read = capsys.readouterr()
    return stopped.value.code, json.loads(read.out) if stopped.value.code < 2 else read.err


def test_recommendations(capsys):
    code, found = run(capsys, "--model", "recsys", "--limit", "2")
    assert code == 0, found
    assert len(found["findings"]) == 3
    assert "transformers' constrained beam search" in found["findings"][1]["name"]


def test_speech(capsys):
    code, found = run(capsys, "--model", "speech", "--limit", "1", "--draft-length", "3")
    assert code == 0, found
    assert "steps of plain decoding" in found["findings"][0]["name"]


def test_other_items_fail(capsys, monkeypatch):
    real = mmspec.recsys.recommend

    def wrong(*args, **options):
        out = real(*args, **options)
        return replace(out, items=[row[::-1] for row in out.items]) if options.get("drafter") is not None else out

    monkeypatch.setattr(mmspec.recsys, "recommend", wrong)
    code, found = run(capsys, "--model", "recsys", "--limit", "1")
    assert code == 1
    assert "0 of 1 identical" in found["findings"][0]["detail"]
    assert "drafter" in found["cause"]


def pictures_of(plain, other, exactness="token-exact"):
    from types import SimpleNamespace

    def generate(model, prompts, method=None, seed=(), **options):
        codes = plain if method == "plain" else other
        return SimpleNamespace(tokens=codes[[0 for _ in prompts]], stats=SimpleNamespace(exactness=exactness, drift=0.5))

    return generate


def test_other_codes_fail(monkeypatch):
    codes = torch.arange(16).view(1, 4, 4)
    for other, passes in ((codes, True), (codes + (codes == 9), False)):
        monkeypatch.setattr(mmspec.vision, "generate", pictures_of(codes, other))
        found = modalities.check_pictures(None, ["a", "b"])
        assert [finding.passed for finding in found] == [passes, True]
        assert passes or ("differs at 9" in found[0].detail and found[0].cause)
    monkeypatch.setattr(mmspec.vision, "generate", pictures_of(codes, codes, "lossy"))
    assert not modalities.check_pictures(None, ["a"])[0].passed


def test_pictures(capsys):
    code, found = run(capsys, "--model", "vision", "--limit", "1")
    assert code == 0, found
    assert "codes of plain decoding" in found["findings"][0]["name"]


def test_continuous_tokens_are_held_to_the_distribution():
    model = mmspec.load("continuous").target
    (right,) = modalities.check_continuous(model, ["ankle boot", "bag"], "path", pictures=8)
    assert right.passed
    (wrong,) = modalities.check_continuous(model, ["ankle boot", "bag"], "path", pictures=8, accept=Generous())
    assert not wrong.passed
    assert "too much of the draft" in wrong.cause


class Generous(AlwaysAccept):
    """Takes every draft token, and says that it is exact."""

    exactness = "distribution-exact"


# --- functions -----------------------------------------------------------------------------------------------------------


def small_target():
    return build(FAMILIES["Llama"])


def small_drafter(target):
    assert target.config.model_type == "llama"
    return build(FAMILIES["Llama"], seed=3)


def wrong_target():
    from tests.proof_mutants import MODELS

    return MODELS["a bidirectional encoder"]()


def nothing():
    return object()


def test_models_that_functions_return(capsys):
    here = __name__
    args = ("--target", f"{here}:small_target", "--drafter", f"{here}:small_drafter", "--limit", "1", "--max-new-tokens", "8")
    code, found = run(capsys, *args)
    assert code == 0, [f for f in found["findings"] if not f["passed"]]
    assert found["model"] == "LlamaForCausalLM"
    code, found = run(capsys, "--target", f"{here}:wrong_target", "--drafter", "none", "--limit", "1", "--max-new-tokens", "8")
    assert code == 1
    assert "reads in both directions" in found["cause"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--target", "nowhere:at_all"), "cannot be imported"),
        (("--target", "nowhere"), "give module:function"),
        (("--target", f"{__name__}:nothing"), "return a transformers model"),
        (("--modality", "smell"), "unknown modality"),
    ],
)
def test_bad_input_exits_with_two(capsys, args, words):
    code, line = run(capsys, *args)
    assert code == 2
    assert words in line
    assert len(line.strip().splitlines()) == 1


def test_the_help_page_has_examples(capsys):
    with pytest.raises(SystemExit):
        app(["check", "--help"])
    text = capsys.readouterr().out
    assert "--target my_models:target" in text
    assert sys.modules["mmspec"]
