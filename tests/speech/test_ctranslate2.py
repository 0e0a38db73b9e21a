"""Whisper's weights as CTranslate2 keeps them: read, taken apart, loaded, transcribed as before; damaged files are refused."""

import importlib.util
import json
import struct
from pathlib import Path

import pytest
import torch

from mmspec.loading.ctranslate2 import load_whisper, read_variables, whisper_names, whisper_sizes, whisper_weights, write_variables

ROOT = Path(__file__).parents[2]


def recipe():
    spec = importlib.util.spec_from_file_location("fetch_whisper", ROOT / "speech" / "fetch_whisper.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ct2")
    recipe().made_up(folder)
    return folder


def by_hand(variables, version=6, aliases=()):
    """The format as its writer in CTranslate2 has it, written apart from `write_variables`."""
    name = lambda text: struct.pack("<H", len(text) + 1) + text.encode() + b"\x00"  # noqa: E731
    out = struct.pack("<I", version) + name("WhisperSpec") + struct.pack("<I", 3) + struct.pack("<I", len(variables))
    for key, (shape, kind, data) in variables.items():
        out += name(key) + bytes([len(shape)]) + b"".join(struct.pack("<I", n) for n in shape) + bytes([kind])
        out += struct.pack("<I", len(data)) + data
    return out + struct.pack("<I", len(aliases)) + b"".join(name(a) + name(b) for a, b in aliases)


def test_every_kind_of_number_is_read(tmp_path):
    half = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=torch.float16)
    path = tmp_path / "model.bin"
    path.write_bytes(
        by_hand(
            {
                "a": ((2, 2), 4, half.numpy().tobytes()),
                "b": ((), 2, struct.pack("<h", 6)),
                "c": ((3,), 1, bytes([255, 0, 1])),
                "d": ((1,), 0, struct.pack("<f", 2.5)),
                "e": ((1,), 5, b"\x80\x3f"),
            },
            aliases=[("f", "a")],
        )
    )
    found = read_variables(path)
    assert torch.equal(found["a"], half)
    assert found["f"] is found["a"]
    assert (int(found["b"]), found["c"].tolist(), found["d"].tolist(), found["e"].tolist()) == (6, [-1, 0, 1], [2.5], [1.0])
    write_variables(tmp_path / "again.bin", {key: found[key] for key in "abcde"}, {"f": "a"})
    assert (tmp_path / "again.bin").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("cut", [0, 3, 17, 60, -1])
def test_a_file_that_ends_early_is_refused(home, tmp_path, cut):
    (tmp_path / "cut.bin").write_bytes((home / "model.bin").read_bytes()[:cut])
    with pytest.raises(ValueError, match="damaged"):
        read_variables(tmp_path / "cut.bin")


def test_other_files_are_refused(home, tmp_path):
    data = (home / "model.bin").read_bytes()
    for broken, words in ((data + b"x", "1 bytes behind"), (struct.pack("<I", 3) + data[4:], "format 3"), (b"PK" * 400, "format")):
        (tmp_path / "model.bin").write_bytes(broken)
        with pytest.raises(ValueError, match=words):
            read_variables(tmp_path / "model.bin")
    with pytest.raises(ValueError, match="another model"):
        whisper_sizes({"decoder/embeddings/weight": torch.zeros(2, 2)})


def test_weights_kept_as_integers_and_biases_of_keys_are_refused(home):
    variables = read_variables(home / "model.bin")
    sizes, name = whisper_sizes(variables), "decoder/layer_0/self_attention/linear_0"
    with pytest.raises(ValueError, match="int8"):
        whisper_weights({**variables, f"{name}/weight": variables[f"{name}/weight"].to(torch.int8)}, sizes)
    biased = variables[f"{name}/bias"].clone()
    biased[40] = 1.0  # of 96: queries, keys, values
    with pytest.raises(ValueError, match="k_proj"):
        whisper_weights({**variables, f"{name}/bias": biased}, sizes)


def test_every_weight_has_its_place(home):
    """Fused projections come apart in the order queries, keys, values; nothing is left over on either side."""
    variables = read_variables(home / "model.bin")
    weights = whisper_weights(variables, whisper_sizes(variables))
    model, _ = load_whisper(home)
    assert set(weights) == set(model.state_dict()) - {"proj_out.weight"}
    for name, tensor in weights.items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert model.proj_out.weight.data_ptr() == model.model.decoder.embed_tokens.weight.data_ptr()
    fused = variables["encoder/layer_0/self_attention/linear_0/weight"]
    for place, part in enumerate("qkv"):
        assert torch.equal(weights[f"model.encoder.layers.0.self_attn.{part}_proj.weight"], fused[32 * place : 32 * place + 32])
    used = {name for name, _ in whisper_names(1, 2)} | {"encoder/num_heads", "decoder/num_heads"}
    assert used == set(variables)


def test_a_kept_model_transcribes_as_its_own_generate(home, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    recipe().keep(home, kept, "card")
    pair = recipe().pair_of(kept, new=12)
    torch.manual_seed(0)
    inputs = pair.processor(torch.randn(16_000).numpy(), sampling_rate=16_000, return_tensors="pt")
    expected = pair.target.generate(**inputs, do_sample=False, max_new_tokens=12)
    assert pair.generate(inputs).sequences[0].tolist() == expected[0].tolist()
    assert (kept / "README.md").read_text() == "card"


def test_models_of_many_languages_know_them(home, tmp_path):
    from mmspec.loading import ctranslate2

    notes, ids = json.loads((home / "config.json").read_text()), {"<|endoftext|>": 0, "<|startoftranscript|>": 1, "<|en|>": 2, "<|haw|>": 3}
    ids |= {f"<|{name}|>": 4 + place for place, name in enumerate(("translate", "transcribe", "startofprev", "notimestamps"))}
    for size, many in ((51_864, False), (51_865, True)):
        found = ctranslate2._generation_config(ids, notes, {"vocab_size": size, "max_target_positions": 448})
        assert found.is_multilingual is many
        assert (found.no_timestamps_token_id, found.decoder_start_token_id, found.max_length) == (7, 1, 448)
        assert getattr(found, "lang_to_id", None) == ({"<|en|>": 2, "<|haw|>": 3} if many else None)
