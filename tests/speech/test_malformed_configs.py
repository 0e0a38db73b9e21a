"""Checkpoints whose files hold wrong fields are refused in one line that names the file, by every loader."""

import json
from pathlib import Path

import pytest

from mmspec.loading.text import load_pair
from mmspec.models.checkpoint_loading import CONFIG, READER, contents_of
from mmspec.run.config import Config, TargetSection
from mmspec.speech.checkpoints.load import load_checkpoint
from tests.speech import small_delay, small_published

DROPPED = object()
CASES = [
    ("config.json", ("decoder_config", "hidden_size"), 1.5),
    ("config.json", ("encoder_config",), "hot"),
    ("config.json", ("delay_pattern",), {}),
    ("config.json", ("decoder_config", "num_channels"), -1),
    ("config.json", ("encoder_config", "rope_parameters", "rope_theta"), {}),
    ("config.json", ("decoder_config", "hidden_act"), "hot"),
    ("config.json", (), []),
    ("processor_config.json", ("audio_tokenizer", "audio_tokenizer_class"), {}),
    ("generation_config.json", ("temperature",), "hot"),
    ("generation_config.json", ("guidance_scale",), "hot"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = Path(small_delay.dia_folder(tmp_path_factory.mktemp("dia")))
    config = json.loads((place / "generation_config.json").read_text(encoding="utf-8"))
    (place / "generation_config.json").write_text(json.dumps(config | {"do_sample": True}), encoding="utf-8")
    return place


def changed(text: str, path: tuple[str, ...], value: object) -> str:
    """A JSON file with one field changed; the whole of it for no path."""
    found = json.loads(text)
    if not path:
        return json.dumps(value)
    inside = found
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return json.dumps(found)


@pytest.mark.parametrize(("name", "path", "value"), CASES)
def test_a_wrong_field_is_told_in_one_line(folder, name, path, value):
    file = folder / name
    whole = file.read_text(encoding="utf-8")
    try:
        file.write_text(changed(whole, path, value), encoding="utf-8")
        with pytest.raises(ValueError, match="cannot be loaded") as refused:
            load_checkpoint(folder)
    finally:
        file.write_text(whole, encoding="utf-8")
    told = str(refused.value)
    assert "\n" not in told
    assert len(told) < 600
    assert any(word in told for word in ("config", "processor"))


def test_a_text_model_is_refused_so_too(tmp_path):
    place = small_published.orpheus_folder(tmp_path)
    text = (place / "config.json").read_text(encoding="utf-8")
    (place / "config.json").write_text(changed(text, ("hidden_size",), "hot"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"cannot be loaded: its config\.json cannot be used: .*hidden_size"):
        load_pair(Config(target=TargetSection(path=str(place))))


def test_what_transformers_stumbles_over_is_told():
    with pytest.raises(ValueError, match=r"its config\.json cannot be used: it has no, or an unknown, 'a'$"), contents_of(CONFIG):
        raise KeyError("a")
    with pytest.raises(ValueError, match=r"tokenizer's or processor's files cannot be used: wrong$"), contents_of(READER):
        raise TypeError("first\nTypeError: wrong")
    with pytest.raises(OSError, match="disk"), contents_of(CONFIG):
        raise OSError("disk")
