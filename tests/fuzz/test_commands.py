"""Wrong command lines end in one clear line, every one of them, and leave nothing half-written."""

import os
import shutil
from functools import cache

import huggingface_hub.constants
import pytest
from PIL import Image

from mmspec import minis
from tests.fuzz.commands import cases
from tests.fuzz.files import broken_files
from tests.fuzz.harness import Report, bounded_memory, command


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "files"
    place.mkdir()
    broken_files(place)
    (place / "lines.txt").write_text("two\n")
    Image.new("RGB", (32, 32)).save(place / "picture.png")
    return place


def test_no_command_line_ends_unclearly(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(minis, "load", cache(minis.load))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    report = Report()
    with bounded_memory():
        for args, wrong in cases(folder, every=bool(os.environ.get("MMSPEC_FUZZ_EVERY"))):
            here = tmp_path / "here"
            here.mkdir()
            outcome, detail = command(args, here, wrong)
            report.add(outcome, detail, " ".join(arg if len(arg) < 60 else f"{arg[:20]}...{arg[-25:]}" for arg in args))
            shutil.rmtree(here)
    print(report.table("command lines"))
    assert report.counts.total() >= 500
    assert report.clear, report.table("command lines")
