"""Recordings on disk: exact in float32, of its range in bfloat16, made chunk by chunk, continued when stopped, memory-mapped when read."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mmspec.train.record import record
from mmspec.train.states.disk import RecordingSettings, chunk_file, open_recording, read_recording, write_chunk
from mmspec.train.states.window import RecordedWindow
from tests.conftest import llama


@pytest.fixture(scope="module")
def target():
    return llama(3, seed=0).requires_grad_(False)


@pytest.fixture(scope="module")
def text():
    """20 windows of 12 values, of which the target wrote the last 8; rows 3 and 4 end early."""
    ids = torch.randint(3, 50, (20, 12), generator=torch.Generator().manual_seed(0))
    own = torch.zeros_like(ids, dtype=torch.bool)
    own[:, 4:] = True
    own[3, 9:] = own[4, 5:] = False
    return ids, own


@torch.no_grad()
def alone(target, ids):
    return target(ids, output_hidden_states=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_are_the_targets_rounded_to_their_dtype(target, text, tmp_path, dtype):
    window = record(target, *text, (2, 0), tmp_path / "states", dtype=dtype).window([1, 17])
    states = alone(target, text[0][[1, 17]]).hidden_states
    exact = RecordedWindow(text[0][[1, 17]], torch.cat([states[2], states[0]], -1), states[-1], text[1][[1, 17]])
    for found, wanted in ((window.features, exact.features), (window.last, exact.last)):
        assert found.dtype == torch.float32
        if dtype == "float32":
            assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(found, found.bfloat16().float())
            assert torch.allclose(found, wanted, rtol=2**-8, atol=1e-5)
    assert torch.equal(window.ids, exact.ids)
    assert torch.equal(window.own, exact.own)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_that_overflow_in_half_precision_are_kept(tmp_path, dtype):
    settings = RecordingSettings(states=(0, 4), dtype=dtype, windows=2, rows=2)
    ids = torch.zeros(2, 3, dtype=torch.long)
    states = torch.tensor([1.5e5, -3e38, 2.0**-130]).expand(2, 3, 3)
    open_recording(tmp_path, settings)
    write_chunk(tmp_path, 0, RecordedWindow(ids, states, states, ids > 0), settings)
    found = read_recording(tmp_path, settings).window([1])
    assert torch.allclose(found.last, states[1:], rtol=2**-8, atol=0)
    assert torch.isinf(states.half()).any()


def test_totals_are_of_the_states_on_disk_and_only_before_the_targets_own_values(target, text, tmp_path):
    window = record(target, *text, (1,), tmp_path / "states", dtype="bfloat16").window(range(20))
    logits = target.lm_head(window.last)
    at = torch.zeros_like(window.own)
    at[:, :-1] = window.own[:, 1:]
    assert torch.allclose(window.total[at], logits.logsumexp(-1)[at], rtol=1e-5)
    assert torch.equal(window.best[at], logits.argmax(-1)[at])
    assert not window.total[~at].any()


def test_a_state_that_is_asked_for_twice_is_stored_once(target, text, tmp_path):
    data = record(target, *text, (-1, 1, 1), tmp_path / "states")
    assert sorted(name for name in data.chunks[0] if name.startswith("state")) == ["state-1", "state-3"]
    window = data.window([0])
    width = window.last.shape[-1]
    assert torch.equal(window.features[..., :width], window.last)
    assert torch.equal(window.features[..., width : 2 * width], window.features[..., 2 * width :])


def test_a_drafter_that_reads_no_states_records_the_last_only(target, text, tmp_path):
    window = record(target, *text, (), tmp_path / "states").window([0, 5])
    assert window.features.shape == (2, 12, 0)
    assert window.last.shape == (2, 12, 32)


# --- chunk by chunk ---------------------------------------------------------------------------------------------------


def counted(target, monkeypatch, stop: int | None = None) -> list[int]:
    """The rows of every forward from now on; the one numbered `stop` is interrupted."""
    seen: list[int] = []
    forward = type(target).forward

    def counting(self, ids, **options):
        if len(seen) == stop:
            raise KeyboardInterrupt
        seen.append(len(ids))
        return forward(self, ids, **options)

    monkeypatch.setattr(type(target), "forward", counting)
    return seen


def test_a_stopped_recording_goes_on_where_it_was(target, text, tmp_path, monkeypatch):
    whole = record(target, *text, (1,), tmp_path / "whole", rows=6)
    with monkeypatch.context() as patched:
        counted(target, patched, stop=2)
        with pytest.raises(KeyboardInterrupt):
            record(target, *text, (1,), tmp_path / "states", rows=6)
    names = sorted(path.name for path in (tmp_path / "states").iterdir())
    assert names == ["states.json", "windows-0.safetensors", "windows-6.safetensors"]
    with monkeypatch.context() as patched:
        seen = counted(target, patched)
        data = record(target, *text, (1,), tmp_path / "states", rows=6)
        assert seen == [6, 2]
        record(target, *text, (1,), tmp_path / "states", rows=6)
        assert seen == [6, 2]
    for name in ("ids", "features", "last", "own", "total", "best"):
        assert torch.equal(getattr(data.window(range(20)), name), getattr(whole.window(range(20)), name))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the mappings of a Linux process")
def test_what_is_read_is_mapped_not_loaded(target, text, tmp_path):
    data = record(target, *text, (1,), tmp_path / "states", rows=10)
    mapped = Path("/proc/self/maps").read_text()
    assert all(str(chunk_file(tmp_path / "states", first)) in mapped for first in (0, 10))
    assert len(data) == 20


def test_windows_are_drawn_from_all_files(target, text, tmp_path):
    data = record(target, *text, (1,), tmp_path / "states", rows=3)
    drawn = [tuple(row) for turn in range(40) for row in data.draw(turn, 4, first=2).ids.tolist()]
    assert set(drawn) == {tuple(row) for row in text[0][2:].tolist()}
    assert data.draw(3, 4).ids.tolist() == data.draw(3, 4).ids.tolist()
    with pytest.raises(ValueError, match="20 windows leave none to train on beside the 20 that are held out"):
        data.draw(0, 4, first=20)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "options", "said"),
    [
        ((2,), {}, r"holds hidden states \[1, 3\], but \[2, 3\] are needed"),
        ((1,), {"dtype": "bfloat16"}, "holds states in float32, not bfloat16"),
        ((1,), {"rows": 5}, "holds 16 windows a file, not 5"),
        ((1,), {"windows": 18}, "holds 20 windows, not 18"),
        ((1,), {"text": 7}, "holds the states of another text"),
        ((1,), {"dtype": "float16"}, "states cannot be recorded in 'float16'; valid: bfloat16, float32"),
    ],
)
def test_a_recording_of_other_settings_is_refused(target, text, tmp_path, states, options, said):
    record(target, *text, (1,), tmp_path / "states")
    options = dict(options)
    windows, other = options.pop("windows", 20), options.pop("text", 0)
    ids, own = (part[:windows] for part in text)
    with pytest.raises(ValueError, match=said) as caught:
        record(target, (ids + other) % 50, own, states, tmp_path / "states", **options)
    assert "\n" not in str(caught.value)


def test_states_of_another_target_are_refused(target, text, tmp_path):
    record(target, *text, (1,), tmp_path / "states")
    other = llama(3, seed=1).requires_grad_(False)
    with pytest.raises(ValueError, match=r"states holds states of a target with checksum \w+, not checksum \w+: delete it or choose"):
        record(other, *text, (1,), tmp_path / "states")


def test_a_recording_of_the_release_before_is_refused(target, text, tmp_path):
    folder = tmp_path / "states"
    folder.mkdir()
    (folder / "states.json").write_text(json.dumps([1, 3]))
    np.save(folder / "hidden.npy", np.zeros((20, 12, 64), dtype=np.float16))
    with pytest.raises(ValueError, match=r"holds hidden states in float16, as mmspec 0.1 recorded them: delete it"):
        record(target, *text, (1,), folder)
    assert (folder / "hidden.npy").exists()


@pytest.mark.parametrize("broken", ['{"states": 3}', "{}", "nonsense", '{"states": [1], "dtype": "float32"}'])
def test_settings_that_cannot_be_read_are_refused(target, text, tmp_path, broken):
    folder = tmp_path / "states"
    folder.mkdir()
    (folder / "states.json").write_text(broken)
    with pytest.raises(ValueError, match=r"states\.json") as caught:
        record(target, *text, (1,), folder)
    assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused_by_name(target, text, tmp_path):
    record(target, *text, (1,), tmp_path / "states", rows=10)
    path = chunk_file(tmp_path / "states", 10)
    part = path.read_bytes()[:-100]
    path.unlink()  # the old one may still be mapped
    path.write_bytes(part)
    with pytest.raises(ValueError, match=r"windows-10\.safetensors is truncated or not safetensors"):
        record(target, *text, (1,), tmp_path / "states", rows=10)
