"""GGUF files as targets and as drafters: dense weights, nothing left of the quantizer, refusals in one line."""

import importlib.util
import io
from types import SimpleNamespace

import gguf
import pytest
import torch
import transformers as hf
from rich.console import Console

import mmspec
from mmspec.cli import app
from mmspec.loading.text import load_pair, named_drafter
from mmspec.loading.transformers import load_model
from mmspec.models import compat
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.utils import screen
from tests import small_gguf

PROMPTS = ["the rain in", "a tiger. the tiger, the"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("gguf")
    small_gguf.write(root / "big.gguf", small_gguf.model())
    small_gguf.write(root / "bytes.gguf", small_gguf.model(), quantized=True)
    small_gguf.write(root / "small.gguf", small_gguf.model(1, layers=1))
    small_gguf.write(root / "torn.gguf", small_gguf.model(), leave_out="model.layers.1.mlp.up_proj.weight")
    (root / "cut.gguf").write_bytes((root / "big.gguf").read_bytes()[:3000])
    (root / "other.gguf").write_bytes(b"not a GGUF file" * 9)
    return root


def pair_of(home, drafter=None, temperature=0.0, name="big.gguf"):
    section = DrafterSection(kind="none" if drafter is None else "model", path=None if drafter is None else str(home / drafter), length=3)
    return load_pair(Config(TargetSection(str(home / name)), section, run=RunSection(max_new_tokens=24, temperature=temperature, seed=5)))


def test_weights_are_those_of_the_file(home):
    expected = small_gguf.model()
    found, tokenizer = load_model(str(home / "big.gguf"), "float32", "cpu")
    assert type(found) is type(expected)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert tokenizer.padding_side == "left"
    assert tokenizer.pad_token_id is not None
    ids = tokenizer("the rain")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the rain"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "auto"])
def test_quantized_blocks_become_dense_weights(home, dtype):
    found, _ = load_model(str(home / "bytes.gguf"), dtype, "cpu")
    assert {weight.dtype for weight in found.parameters()} == {torch.bfloat16 if dtype == "bfloat16" else torch.float32}
    for name, tensor in small_gguf.model().state_dict().items():
        difference = (found.state_dict()[name].float() - tensor).abs().amax()
        assert difference <= tensor.abs().amax() * (2**-7 if dtype == "bfloat16" else 1 / 250), name


def test_a_file_is_read_once_and_says_so(home, tmp_path, monkeypatch, caplog):
    """The second load reads a folder: the same weights, tokens and answers. A changed file is read anew, and its earlier copy goes."""
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    path, read = tmp_path / "bytes.gguf", []
    path.write_bytes((home / "bytes.gguf").read_bytes())
    options = compat.gguf_options
    monkeypatch.setattr(compat, "gguf_options", lambda name: read.append(name) or options(name))
    first, words = load_model(str(path), "float32", "cpu")
    assert "reading 0.0 GB of GGUF" in caplog.text
    assert f"kept as a folder in {tmp_path / 'cache'}" in caplog.text
    caplog.clear()
    second, again = load_model(str(path), "float32", "cpu")
    assert (len(read), caplog.text) == (1, "")
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())
    assert [words(text)["input_ids"] for text in PROMPTS] == [again(text)["input_ids"] for text in PROMPTS]
    assert (words.padding_side, words.pad_token_id) == (again.padding_side, again.pad_token_id)
    path.write_bytes((home / "big.gguf").read_bytes())
    changed, _ = load_model(str(path), "float32", "cpu")
    assert len(read) == 2
    assert all(torch.equal(value, changed.state_dict()[name]) for name, value in small_gguf.model().state_dict().items())
    assert len(list((tmp_path / "cache" / "gguf").glob("*/*"))) == 1


def test_without_room_a_file_is_read_each_time_with_the_remedy(home, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=0))
    for _ in range(2):
        load_model(str(home / "big.gguf"), "float32", "cpu")
    assert caplog.text.count("could not be kept") == 2
    assert "save_pretrained of model and tokenizer writes a folder" in caplog.text


def test_nothing_is_left_of_the_quantizer(home, tmp_path):
    """A model that is loaded the plain way keeps it: then it cannot be saved."""
    plain = hf.AutoModelForCausalLM.from_pretrained(home, gguf_file="bytes.gguf")
    with pytest.raises(ValueError, match="not serializable"):
        plain.save_pretrained(tmp_path / "refused")
    found, tokenizer = load_model(str(home / "bytes.gguf"), "float32", "cpu")
    fresh = type(found)(found.config)
    assert not getattr(found, "is_quantized", False)
    assert "quantization_config" not in found.config.to_dict()
    assert {type(module) for module in found.modules()} == {type(module) for module in fresh.modules()}
    found.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, _ = load_model(str(tmp_path / "saved"), "float32", "cpu")
    for name, tensor in found.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert set(vars(found)) - set(vars(again)) <= {"is_quantized"}
    found.half()


def test_saved_weights_that_still_name_their_file_load_as_what_they_are(home, tmp_path):
    plain = hf.AutoModelForCausalLM.from_pretrained(home, gguf_file="big.gguf")
    fresh = type(plain)(plain.config)
    fresh.load_state_dict(plain.state_dict())
    fresh.save_pretrained(tmp_path)
    hf.AutoTokenizer.from_pretrained(home, gguf_file="big.gguf").save_pretrained(tmp_path)
    assert '"gguf"' in (tmp_path / "config.json").read_text(encoding="utf-8")
    found, _ = load_model(str(tmp_path), "auto", "cpu")
    assert not getattr(found, "is_quantized", False)
    found.half()


def test_a_note_of_other_quantizers_is_kept():
    config = hf.LlamaConfig(quantization_config={"quant_method": "gptq"})
    compat.forget_gguf(config)
    assert config.quantization_config["quant_method"] == "gptq"
    compat.forget_gguf(hf.LlamaConfig())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", [None, "small.gguf", "bytes.gguf"])
def test_a_file_is_a_target_and_a_drafter(home, drafter, temperature):
    """Ragged rows; the output is that of the weights the file was written from."""
    pair = pair_of(home, drafter, temperature)
    inputs = pair.inputs(PROMPTS)
    out = pair.generate(inputs)
    expected = mmspec.text.generate(small_gguf.model(), inputs, max_new_tokens=24, temperature=temperature, seed=5)
    assert torch.equal(out.sequences, expected.sequences)
    assert (out.stats.accepted > 0) == (drafter is not None)
    if temperature == 0:
        for prompt, row, length in zip(PROMPTS, out.sequences, out.lengths.tolist(), strict=True):
            alone = pair.inputs([prompt])
            own = pair.target.generate(**alone, do_sample=False, max_new_tokens=24)[0, alone["input_ids"].shape[1] :]
            assert row[:length].tolist() == own.tolist()[:length]


def test_another_files_weights_give_other_tokens(home):
    """What the test above would show if the wrong file were read."""
    out = [pair.generate(pair.inputs(PROMPTS)).sequences for pair in (pair_of(home), pair_of(home, name="small.gguf"))]
    assert not torch.equal(*out)


def test_reading_a_file_shows_its_progress_on_a_terminal(home, tmp_path, monkeypatch, capsys):
    """Relied on by `compat.gguf_progress`; the reader's own bar is back afterwards. The spinner of a command makes room for the bar."""
    from transformers import modeling_gguf_pytorch_utils as reader

    before = reader.tqdm
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path))
    with screen.spinner("loading"):
        load_model(str(home / "big.gguf"), "float32", "cpu")
    assert "reading" not in capsys.readouterr().err
    shown, moving = io.StringIO(), []
    monkeypatch.setattr(screen, "console", lambda stderr=False: Console(file=shown, force_terminal=True, width=200))
    dequantize = gguf.dequantize
    monkeypatch.setattr(gguf, "dequantize", lambda *tensor: moving.append(spinner._live.is_started) or dequantize(*tensor))
    with screen.spinner("loading"):
        spinner = screen._spinners[-1]
        load_model(str(home / "bytes.gguf"), "float32", "cpu")
        assert spinner._live.is_started
    assert f"reading {home / 'bytes.gguf'}" in shown.getvalue()
    assert "100%" in shown.getvalue()
    assert set(moving) == {False}
    assert reader.tqdm is before


def test_names_of_files_are_models(home):
    assert named_drafter(str(home / "small.gguf")) == ("model", str(home / "small.gguf"))
    assert named_drafter("missing.gguf") == ("model", "missing.gguf")


@pytest.fixture
def refused(capsys):
    """The one line with which `mmspec text` refuses a model."""

    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app(["text", "a", "--max-new-tokens", "4", "--device", "cpu", *map(str, args)])
        out, err = capsys.readouterr()
        assert (stopped.value.code, out) == (2, "")
        assert len(err.splitlines()) == 1
        return err

    return run


def test_files_that_cannot_be_read(home, refused):
    for name, words in {
        "missing.gguf": "GGUF file",
        "torn.gguf": "mlp.up_proj",
        "cut.gguf": "cannot be loaded",
        "other.gguf": "cannot be loaded",
    }.items():
        assert words in refused("--model", home / name), name
        assert words in refused("--model", home / "big.gguf", "--drafter", home / name), name
    line = refused("--model", "missing.gguf")
    assert "does not exist" in line
    assert "text/fetch_model.py" in line


def test_without_the_package(home, refused, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else find(name, *rest))
    assert "pip install 'mmspec[gguf]'" in refused("--model", home / "big.gguf")


def test_a_hub_name_that_cannot_be_had(refused, monkeypatch):
    def unreachable(name, **options):
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them.\nCheck your connection.")

    monkeypatch.setattr(hf.AutoConfig, "from_pretrained", unreachable)
    for line in (refused("--model", "someone/something"), refused("--drafter", "someone/something")):
        assert "someone/something" in line
        assert "the hub cannot be reached" in line
