"""A compile cache that a killed process left broken is deleted in part and built again."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from mmspec.models.compat import compiler

LIBRARY = next(Path(np.__path__[0], "random").glob("*.so"))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "aa").mkdir()
    (tmp_path / "aa" / "whole.py").write_text("def call(args):\n    return args\n")
    shutil.copy(LIBRARY, tmp_path / "aa" / "whole.so")
    return tmp_path


def failed() -> BackendCompilerFailed:
    return BackendCompilerFailed.__new__(BackendCompilerFailed)  # its arguments differ between versions of torch


@pytest.mark.parametrize("name", ["whole.py", "whole.so"])
@pytest.mark.parametrize("share", [0, 0.02, 0.6])
def test_truncated_files_are_found(cache, name, share):
    assert list(compiler.truncated_files(cache)) == []
    content = (cache / "aa" / name).read_bytes()
    (cache / "aa" / f"broken-{name}").write_bytes(content[: int(share * len(content))])
    assert [path.name for path in compiler.truncated_files(cache)] == [f"broken-{name}"]


def test_a_broken_cache_is_compiled_again(cache):
    (cache / "aa" / "broken.so").write_bytes(LIBRARY.read_bytes()[:100])
    turns = []

    def run() -> str:
        turns.append(sorted(path.name for path in (cache / "aa").iterdir()))
        if len(turns) == 1:
            raise failed()
        return "done"

    with pytest.warns(UserWarning, match="1 truncated files"):
        assert compiler.with_whole_cache(run) == "done"
    assert turns[1] == ["whole.py", "whole.so"]


def test_other_failures_stay(cache):
    def run() -> None:
        raise failed()

    with pytest.raises(BackendCompilerFailed):
        compiler.with_whole_cache(run)
    assert torch.is_tensor(compiler.with_whole_cache(lambda: torch.zeros(1)))
