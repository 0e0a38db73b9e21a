"""Speech models by folder: what was saved speaks as before, and what is missing is named."""

import json

import numpy as np
import pytest
from transformers import GenerationConfig

from mmspec.speech import synthesize
from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families.bark import Bark
from tests.speech import small_bark
from tests.speech.small_codecs import dac
from tests.speech.test_codec_lm import TEXTS, llasa, rows_of

LAYOUT = {
    "codec": "codec",
    "pattern": "<|s_{}|>",
    "end": "<end>",
    "template": "<{voice}>{text}<go>",
    "voices": ["ann", "bob"],
    "longest": 30,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place, speaker = tmp_path_factory.mktemp("llasa"), llasa()
    speaker.model.save_pretrained(place)
    speaker.letters.tokenizer.save_pretrained(place)
    dac(n_codebooks=1).save_pretrained(place / "codec")
    (place / "speech.json").write_text(json.dumps(LAYOUT | {"block": 3}), encoding="utf-8")
    return place


def test_a_codec_language_model_speaks_as_before(folder):
    told = {"seed": 3, "max_seconds": 0.15, "top_p": 0.9, "voice": "bob"}
    before, after = (synthesize(model, TEXTS, **told) for model in (llasa(), load_checkpoint(str(folder))))
    assert rows_of(before) == rows_of(after)
    assert all(abs(a - b).max() < 1e-5 for a, b in zip(before.waveforms, after.waveforms, strict=True))


def test_bark_speaks_as_before(tmp_path):
    model = small_bark.bark()
    own, model.generation_config = model.generation_config, GenerationConfig()  # the class's own cannot be saved
    model.save_pretrained(tmp_path)
    nested = {name: getattr(own, name).to_dict() for name in ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config")}
    told = nested | {"codebook_size": own.codebook_size, "sample_rate": own.sample_rate}
    (tmp_path / "generation_config.json").write_text(json.dumps(told), encoding="utf-8")
    preset = small_bark.voice()
    for key, value in preset.items():
        np.save(tmp_path / f"ann_{key}.npy", np.asarray(value))
    paths = {"repo_or_path": "elsewhere", "ann": {key: f"ann_{key}.npy" for key in preset}}
    (tmp_path / "speaker_embeddings_path.json").write_text(json.dumps(paths), encoding="utf-8")
    reader = small_bark.tokenizer()
    reader.pad_token = " "  # as the published tokenizer has one
    reader.save_pretrained(tmp_path)
    found = load_checkpoint(str(tmp_path))
    assert found.voices == ("ann",)
    before = Bark(small_bark.bark(), small_bark.tokenizer(), {"ann": preset})
    same = [synthesize(model, ["hello"], temperature=0, voice="ann", max_seconds=0.2).tokens.tolist() for model in (found, before)]
    assert same[0] == same[1] != synthesize(found, ["hello"], temperature=0, max_seconds=0.2).tokens.tolist()
    assert found.first.semantic_vocab_size == small_bark.SEMANTIC
    assert synthesize(found, ["hello"], "lookup", max_seconds=0.2).lengths.tolist() == [26]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"codec": "codec", "end": "<end>"}, "the layout lacks pattern"),
        (LAYOUT | {"rate": 1}, "the layout has rate, which is unknown; valid: codec"),
        (LAYOUT | {"end": "<stop>"}, "has no token '<stop>'"),
    ],
)
def test_a_wrong_layout_is_told_in_one_line(folder, layout, said):
    with pytest.raises(ValueError, match="cannot be loaded") as caught:
        load_checkpoint(str(folder), layout)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_layout_at_all(folder, tmp_path):
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_checkpoint(str(tmp_path / "nowhere"))
    (folder / "speech.json").rename(folder / "kept.json")
    with pytest.raises(ValueError, match=r"nothing says which ids are codes: give a layout, or write one to .*speech\.json"):
        load_checkpoint(str(folder))
    (folder / "kept.json").rename(folder / "speech.json")
