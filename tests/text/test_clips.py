"""Clips are read as players show them, sampled as the processor asks; what cannot be read is one line that names it."""

import sys
from functools import cache, partial
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
import transformers as hf
from transformers.video_utils import load_video

from mmspec.loading.transformers import load_model
from mmspec.text.inputs import clips
from mmspec.text.inputs.clips import FrameSampling, is_clip, read_clip
from mmspec.text.inputs.pictures import pictures_and_clips_in, pictures_in, split_arguments
from mmspec.text.inputs.vision_inputs import VisionPrompt, default_prompt, process_vision_inputs
from tests.small_clips import QWEN, film, qwen, save

EVERY = SimpleNamespace(do_sample_frames=False)  # a video processor that takes all frames


@cache
def processor():
    return qwen("2.5")[1]


@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "h264"), ("a.m4v", "mpeg4"), ("a.mov", "mpeg4"), ("A.AVI", "mpeg4")])
def test_frames_are_those_transformers_reads(tmp_path, name, codec):
    path = film(tmp_path / name, codec=codec)
    frames, metadata = read_clip(path).read(EVERY)
    own, told = load_video(str(path), backend="pyav")
    assert np.array_equal(frames, own)
    for key in ("total_num_frames", "fps", "duration", "height", "width"):
        assert getattr(metadata, key) == getattr(told, key), key
    assert list(metadata.frames_indices) == list(told.frames_indices)


@pytest.mark.parametrize(("name", "codec"), [("a.mkv", "h264"), ("a.webm", "libvpx-vp9")])
def test_containers_that_do_not_say_their_frames(tmp_path, name, codec):
    path = film(tmp_path / name, frames=20, rate=10, codec=codec)
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames == 0
    clip = read_clip(path)
    frames, metadata = clip.read(EVERY)
    assert (clip.frames, clip.fps, frames.shape, metadata.duration) == (20, 10, (20, 32, 48, 3), 2)
    assert len({frame.tobytes() for frame in frames}) == 20


SAMPLERS = {
    "Qwen2-VL": partial(hf.Qwen2VLVideoProcessor, do_sample_frames=True, fps=2),
    "Qwen3-VL": partial(hf.Qwen3VLVideoProcessor),
    "GLM-4V": partial(hf.Glm4vVideoProcessor),
    "InternVL": partial(hf.InternVLVideoProcessor, do_sample_frames=True, num_frames=8),
    "LLaVA-NeXT-Video": partial(hf.LlavaNextVideoVideoProcessor, do_sample_frames=True, fps=3),
    "LLaVA-OneVision": partial(hf.LlavaOnevisionVideoProcessor),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_frames_are_sampled_as_the_processor_does(tmp_path, name):
    """By its own `preprocess` on the whole clip, seen by numbered frames."""
    video = SAMPLERS[name]()
    clip = read_clip(film(tmp_path / "a.mp4", frames=42, rate=7))
    frames = torch.arange(42.0)[:, None, None, None].expand(42, 3, 32, 32)
    kept = []
    prepare = video._prepare_input_videos

    def keep(videos, **more):
        kept.extend(videos[0][:, 0, 0, 0].int().tolist())
        return prepare(videos=videos, **more)

    video._prepare_input_videos = keep
    video(frames, video_metadata=[clip.metadata()], return_tensors="pt")
    assert clip.indices(video) == kept
    assert len(kept) in (8, 12, 18, 42)


def test_what_the_processor_returns_is_that_of_the_whole_clip(tmp_path):
    paths = [film(tmp_path / "a.mp4"), film(tmp_path / "b.mp4", frames=50, rate=20, seed=1)]
    films = [load_video(str(path), backend="pyav") for path in paths]
    texts = [f"{QWEN[2]}{QWEN[1]}{QWEN[3]}what ?"] * 2
    told = {"videos": [frames for frames, _ in films], "video_metadata": [metadata for _, metadata in films]}
    own = processor()(text=texts, padding=True, return_tensors="pt", **told)
    found = process_vision_inputs(processor(), [VisionPrompt("what ?", (), (read_clip(path),)) for path in paths], "it")
    assert found.keys() == own.keys()
    for key, value in own.items():
        assert torch.equal(found[key], value), key
    seconds = own["second_per_grid_ts"].tolist()  # 24 frames of 3 s become 6; 50 of 2.5 s become 4
    assert seconds == pytest.approx([2 * 3 / 6, 2 * 2.5 / 4])


def test_frames_may_be_asked_for(tmp_path):
    path = film(tmp_path / "a.mp4", frames=24, rate=8)
    video = processor().video_processor
    assert read_clip(path).indices(video) == [0, 4, 8, 12, 16, 20]
    assert read_clip(path, sampling=FrameSampling(frames=4)).indices(video) == [0, 6, 12, 18]
    assert read_clip(path, sampling=FrameSampling(frames=400)).indices(video) == list(range(24))
    assert read_clip(path, sampling=FrameSampling(fps=1)).indices(video) == [0, 8, 16]
    assert read_clip(path, sampling=FrameSampling(fps=0.01)).indices(video) == [0]
    assert read_clip(path, sampling=FrameSampling(fps=100)).indices(video) == list(range(24))
    for wrong in ({"fps": 0.0}, {"frames": -2}, {"fps": float("nan")}, {"fps": 1, "frames": 2}):
        with pytest.raises(ValueError, match="--f"):
            FrameSampling(**wrong)


def turned(path, matrix):
    """`path` with the display matrix of its track replaced."""
    content = bytearray(path.read_bytes())
    place = content.index(b"tkhd") + 4 + 40
    content[place : place + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in matrix)
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(("quarters", "corner"), [(1, (0, -1, 1, 0)), (2, (-1, 0, 0, -1)), (3, (0, 1, -1, 0))])
def test_a_clip_is_turned_as_its_camera_says(tmp_path, quarters, corner):
    path = film(tmp_path / "a.mp4", frames=4)
    straight, _ = read_clip(path).read(EVERY)
    a, b, c, d = (value << 16 for value in corner)
    turned(path, (a, b, 0, c, d, 0, 0, 0, 1 << 30))
    frames, metadata = read_clip(path).read(EVERY)
    assert np.array_equal(frames, np.rot90(straight, quarters, axes=(1, 2)))
    assert (metadata.height, metadata.width) == frames.shape[1:3]


def test_a_clip_with_fewer_frames_than_it_says(tmp_path, monkeypatch):
    path = film(tmp_path / "a.mp4", frames=24)
    clip = clips.replace(read_clip(path), frames=40)
    frames, metadata = clip.read(processor().video_processor)
    whole, _ = read_clip(path).read(processor().video_processor)
    assert np.array_equal(frames, whole)
    assert metadata.total_num_frames == 24


def playlist(path):
    film(path.with_name("other.mp4"))
    return b"#EXTM3U\n#EXTINF:3,\nother.mp4\n#EXT-X-ENDLIST\n"


def sound(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def empty(path):
    with av.open(str(path), "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuv420p"
        container.start_encoding()
    return path.read_bytes()


BROKEN = {
    "an empty file": (lambda path: b"", "an empty file"),
    "text": (lambda path: b"not a clip", "cannot be decoded"),
    "half a clip": (lambda path: film(path).read_bytes()[:1500], "cannot be decoded"),
    "a playlist": (playlist, "cannot be decoded"),
    "sound alone": (sound, "holds no video"),
    "no frames": (empty, "holds no frames"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_read_is_one_line_that_names_it(tmp_path, kind):
    make, words = BROKEN[kind]
    path = tmp_path / "a.mp4"
    path.write_bytes(make(path))
    with pytest.raises(ValueError, match=r"a\.mp4") as error:
        read_clip(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_every_cut_of_a_file_is_a_clip_or_one_line(tmp_path):
    whole, read, lines = film(tmp_path / "a.avi", frames=12).read_bytes(), 0, set()
    for end in range(0, len(whole), len(whole) // 40):
        (tmp_path / "b.avi").write_bytes(whole[:end])
        try:
            frames, metadata = read_clip(tmp_path / "b.avi").read(EVERY)
            assert 0 < len(frames) <= 12
            assert len(metadata.frames_indices) == len(frames)
            read += 1
        except ValueError as error:
            lines.add((len(str(error).splitlines()), "b.avi" in str(error)))
    assert lines == {(1, True)}
    assert read > 5


def test_more_pixels_than_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(clips, "_MOST", 20 * 32 * 48)
    clip = read_clip(film(tmp_path / "a.mp4"))
    with pytest.raises(ValueError, match=r"24 frames of 48 x 32 pixels, .*give --frames N"):
        clip.read(EVERY)
    assert len(read_clip(clip.path, sampling=FrameSampling(frames=5)).read(EVERY)[0]) == 5


def test_a_clip_too_short_for_the_processor(tmp_path):
    clip = read_clip(film(tmp_path / "a.mp4", frames=3))
    with pytest.raises(ValueError, match=r"a\.mp4 has 3 frames, which the model's processor cannot sample .*give --frames N") as error:
        clip.read(hf.InternVLVideoProcessor(do_sample_frames=True, num_frames=8))
    assert "\n" not in str(error.value)


def test_without_pyav(tmp_path, monkeypatch):
    path = film(tmp_path / "a.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ValueError, match=r"pip install 'mmspec\[video\]'$"):
        read_clip(path)


def test_without_torchvision(tmp_path, monkeypatch):
    def missing(*args, **more):
        raise ImportError("\nQwen2VLVideoProcessor requires the Torchvision library but it was not found in your environment.")

    monkeypatch.setattr(hf.AutoProcessor, "from_pretrained", missing)
    with pytest.raises(ValueError, match=r"needs torchvision: pip install 'mmspec\[video\]'$"):
        load_model(str(save("qwen2.5", tmp_path)), "float32", "cpu")


def test_names_of_clips(tmp_path):
    assert is_clip("a.MP4")
    assert not is_clip("a.gif")  # its first frame is read as a picture
    assert split_arguments(["a.png", "b.mp4"]) == (["a.png", "b.mp4"], None)
    assert split_arguments(["b.mp4", "what?"]) == (["b.mp4"], "what?")
    for name in ("b.mp4", "a.jpg", "in/c.webm", ".d.mp4", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert pictures_and_clips_in(tmp_path) == ["a.jpg", "b.mp4", "in/c.webm"]
    assert pictures_in(tmp_path) == ["a.jpg"]
    assert default_prompt(["b.mp4"]) == "describe the video."
    assert default_prompt(["b.mp4", "a.jpg"]) == "describe the picture."
    with pytest.raises(ValueError, match="no picture and no clip"):
        pictures_and_clips_in(tmp_path / ".git")
