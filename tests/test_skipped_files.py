"""Every reader of a folder names the files that it leaves out, once."""

import json

import pytest

from mmspec.commands.transcribe import sounds_in
from mmspec.loading.picture_requests import folder_requests
from mmspec.minis.picture_sets.folder import read_folder
from mmspec.text.inputs.pictures import pictures_and_clips_in, pictures_in
from mmspec.utils.files import parquet_files

TAKEN = {
    "sounds": ("a.wav", lambda folder: sounds_in([str(folder)])),
    "pictures": ("a.png", pictures_in),
    "pictures and clips": ("a.mp4", pictures_and_clips_in),
    "pictures to train on": ("a.png", read_folder),
    "pictures with captions": ("a.png", read_folder),
    "pictures to ask about": ("a.png", lambda folder: folder_requests(None, folder, folder / "prompts.txt", 2, 1)),  # pyright: ignore[reportArgumentType]
    "a table": ("a.parquet", parquet_files),
    "a table in parts": ("day=1/a.parquet", parquet_files),
}
"""A file that each reader takes, and the reader."""


@pytest.mark.parametrize("kind", TAKEN)
def test_what_a_folder_holds_beside_is_named(kind, tmp_path, capsys):
    name, read = TAKEN[kind]
    others = {"notes.docx", "in/b.heic", "in/c.csv"}
    for each in (name, *others, ".hidden", ".git/d.png", "_SUCCESS" if "table" in kind else ".more"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_bytes(b"1")
    if "captions" in kind:
        (tmp_path / "captions.jsonl").write_text(json.dumps({"file": name, "caption": "a"}))
    if "ask" in kind:
        (tmp_path / "prompts.txt").write_text("what?\nwhere?")
        others |= {"prompts.txt"}
    read(tmp_path)
    read(tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    head, _, rest = line.partition(f": {len(others)} (")
    assert head.startswith(f"skipped in {tmp_path}, ")
    assert set(rest.removesuffix(")").split(", ")) == others
