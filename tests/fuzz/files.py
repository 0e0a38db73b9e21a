"""Broken files of every kind."""

import json
from pathlib import Path

_ENDINGS = ("txt", "yaml", "json", "jsonl", "npy", "npz", "parquet", "wav", "png", "mp4", "bin", "safetensors")


def broken_files(folder: Path) -> Path:
    """Write them into `folder`, and return it."""
    for ending in _ENDINGS:
        (folder / f"empty.{ending}").touch()
        (folder / f"junk.{ending}").write_bytes(bytes(range(256)) * 8)
    (folder / "utf16.txt").write_bytes("hello".encode("utf-16"))
    (folder / "list.json").write_text("[1, 2]")
    (folder / "object.json").write_text('{"a": 1}')
    (folder / "gap.json").write_text("[[0], [5]]")
    (folder / "deep.json").write_text("[" * 5000)
    (folder / "deep.yaml").write_text("[" * 5000)
    (folder / "huge.json").write_text("9" * 5000)
    (folder / "deep").mkdir()
    (folder / "deep" / "config.json").write_text('{"a":' * 5000)
    (folder / "no-prompt.jsonl").write_text('{"text": 3}\n')
    (folder / "good.txt").write_text("Story: The bird\n")
    (folder / "loop").symlink_to(folder / "loop")
    for name, config in (("drafter", {"mmspec_drafter": "medusa"}), ("model", {"model_type": "llama"}), ("strange", {"model_type": "x"})):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder
