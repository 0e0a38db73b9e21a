"""`mmspec caption clip.mp4`: the tokens of the model's own `generate` on its own processor's inputs, alone and in jobs."""

import json
from functools import cache

import pytest
from transformers.video_utils import load_video

from mmspec.loading import text as pairs
from mmspec.loading.transformers import load_model
from mmspec.models.families.multimodal import never_generated_ids_of
from tests import small_clips, small_seers
from tests.commands import refused, runner

NEW = 10
SHORT = ("--max-new-tokens", NEW)
ASKED = "what happens ?"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in small_clips.MAKERS:
        small_clips.save(name, root)
    return root


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    """A folder with clips of 3 s, 5 s and 2 s, in three containers, and two pictures."""
    folder = tmp_path_factory.mktemp("media")
    small_clips.film(folder / "a.mp4")
    small_clips.film(folder / "c.mkv", frames=40, codec="h264", seed=1)
    small_clips.film(folder / "e.mov", frames=16, size=(32, 48), seed=2)
    for name, seed in (("b.png", 3), ("d.png", 4)):
        small_seers.noise(24, 24, seed=seed).save(folder / name)
    return folder


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "load_model", cache(load_model))
        yield


@pytest.fixture
def caption(capsys, home):
    """The command without a file: (exit code, stdout, stderr)."""

    def run(*args, model="qwen2.5"):
        from mmspec.cli import app

        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in ("caption", *args, "--model", home / model, "--device", "cpu")])
        return (stopped.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def batch(capsys, tmp_path, home):
    return runner(capsys, tmp_path / "out", "caption", home / "qwen2.5", "answers.jsonl")


def generated(home, model, text, clips=(), pictures=(), **sampling):
    """The tokens of `generate` on what the processor makes of whole clips, decoded and described by transformers."""
    target, processor = load_model(str(home / model), "float32", "cpu")
    seen = {"images": [list(pictures)]} if pictures else {}
    if clips:
        films = [load_video(str(path), backend="pyav") for path in clips]
        seen |= {"videos": [frames for frames, _ in films], "video_metadata": [told for _, told in films], **sampling}
    inputs = processor(text=[text], return_tensors="pt", **seen)
    out = target.generate(**inputs, do_sample=False, max_new_tokens=NEW, suppress_tokens=list(never_generated_ids_of(target)))
    return out[0, inputs["input_ids"].shape[1] :].tolist()


def tokens(result):
    code, out, err = result
    assert code == 0, err
    return json.loads(out)["tokens"]


QWEN = "<|vision_start|><|video_pad|><|vision_end|>"
TEXTS = {
    "qwen2": f"{QWEN}{ASKED} ?",
    "qwen2.5": f"{QWEN}{ASKED} ?",
    "qwen3": f"{QWEN}{ASKED} ?",
    "llava": f"<video>{ASKED}",
    "intern": f"<video>{ASKED}",
}
TEXTS["glm"] = f"<|begin_of_video|><|video|><|end_of_video|>{ASKED}"


@pytest.mark.parametrize("model", TEXTS)
def test_an_answer_is_that_of_generate(caption, home, media, model):
    expected = generated(home, model, TEXTS[model], [media / "a.mp4"])
    args = (media / "a.mp4", ASKED, *SHORT, "--json")
    found = json.loads(caption(*args, "--drafter", "none", model=model)[1])
    assert (found["tokens"], found["clips"], found["pictures"]) == (expected, [str(media / "a.mp4")], [])
    assert tokens(caption(*args, "--drafter", "lookup", model=model)) == expected
    itself = json.loads(caption(*args, "--drafter", home / model, "--draft-length", 3, model=model)[1])
    assert itself["tokens"] == expected
    assert itself["stats"]["tokens_per_call"] > 2
    tree = caption(*args, "--drafter", home / model, "--tree", "2,2", model=model)
    assert tokens(tree) == expected
    blind = caption(*args, "--drafter", home / model, "--view", "drop", "--draft-length", 3, model=model)
    assert tokens(blind) == expected


@pytest.mark.parametrize("model", TEXTS)
def test_clips_differ(caption, media, model):
    asked = (ASKED, *SHORT, "--json", "--drafter", "none")
    assert len({tuple(tokens(caption(media / name, *asked, model=model))) for name in ("a.mp4", "c.mkv", "e.mov")}) == 3


@pytest.mark.parametrize("model", ["qwen2.5", "qwen3"])
@pytest.mark.parametrize("view", [("newline",), ("own+drop",), ("pruned",), ("caption", "--caption", "red circles")])
def test_views_leave_the_answer_alone(caption, home, media, view, model):
    args = (media / "a.mp4", ASKED, *SHORT, "--json")
    code, out, err = caption(*args, "--drafter", home / model, "--draft-length", 3, "--view", *view, model=model)
    assert code == 0, err
    found = json.loads(out)
    assert found["tokens"] == tokens(caption(*args, "--drafter", "none", model=model))
    assert found["stats"]["drafted"] > 0


def test_clips_and_pictures_in_one_prompt(caption, home, media):
    from PIL import Image

    picture = Image.open(media / "b.png").convert("RGB")
    files = (media / "a.mp4", media / "b.png", media / "e.mov")
    image, clip = QWEN.replace("video", "image"), QWEN
    for asked, text in (("what ?", f"{image}{clip}{clip}what ? ?"), ("<video> is <image> and <video>", f"{clip} is {image} and {clip} ?")):
        expected = generated(home, "qwen2.5", text, [files[0], files[2]], [picture])
        assert tokens(caption(*files, asked, *SHORT, "--json")) == expected
    bare = f"{image}{clip}{clip}what ?"
    assert tokens(caption(*files, "what ?", "--no-chat", *SHORT, "--json")) == generated(
        home, "qwen2.5", bare, [files[0], files[2]], [picture]
    )


@pytest.mark.parametrize(("option", "chosen"), [(("--fps", 4), {"fps": 4}), (("--frames", 10), {"num_frames": 10, "fps": None})])
def test_frames_are_taken_as_asked(caption, home, media, option, chosen):
    expected = generated(home, "qwen2.5", TEXTS["qwen2.5"], [media / "a.mp4"], **chosen)
    found = tokens(caption(media / "a.mp4", ASKED, *SHORT, *option, "--json"))
    assert found == expected
    assert found != tokens(caption(media / "a.mp4", ASKED, *SHORT, "--json"))


def test_what_is_asked_by_default(caption, media):
    def prompt(*files):
        return json.loads(caption(*files, "--max-new-tokens", 1, "--json")[1])["prompt"]

    assert prompt(media / "a.mp4") == "describe the video."
    assert prompt(media / "a.mp4", media / "b.png") == "describe the picture."


# --- jobs -----------------------------------------------------------------------------------------------------------------


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("model", ["qwen2.5", "qwen3", "llava", "intern"])
def test_a_folder_of_clips_and_pictures_is_a_job(batch, caption, home, media, model):
    seen = {"model": home / model, "out": f"{model}.jsonl"}
    code, out, err, path = batch(media, *SHORT, "--temperature", 1, "--seed", 3, "--batch-size", 5, "--json", **seen)
    assert code == 0, err
    assert (json.loads(out)["outputs"], json.loads(out)["rejects"]) == (5, 0)
    found = rows(path)
    assert [row["file"] for row in found] == ["a.mp4", "b.png", "c.mkv", "d.png", "e.mov"]
    kinds = ["video", "picture", "video", "picture", "video"]
    assert [row["prompt"] for row in found] == [f"describe the {kind}." for kind in kinds]
    for row in found:
        drawn = ("--temperature", 1, "--seed", 3 + row["index"], "--json", "--drafter", "none")
        assert tokens(caption(media / row["file"], *SHORT, *drawn, model=model)) == row["tokens"]


def test_greedy_answers_of_a_job_are_those_of_generate(batch, home, media):
    _, _, _, path = batch(media, "--prompt", ASKED, *SHORT, "--drafter", home / "qwen2.5", "--draft-length", 3)
    for row in rows(path):
        if row["file"] in ("a.mp4", "e.mov"):  # transformers cannot count the frames of a Matroska file
            assert row["tokens"] == generated(home, "qwen2.5", TEXTS["qwen2.5"], [media / row["file"]])


def test_requests_by_line_and_rejects(batch, caption, media, tmp_path):
    lines = media / "asked.jsonl"
    (media / "broken.mp4").write_bytes((media / "a.mp4").read_bytes()[:900])
    asked = [{"files": ["a.mp4", "b.png"]}, {"file": "broken.mp4"}, {"file": "nowhere.mp4"}, {"file": "a.mp4", "prompt": "<video><video>"}]
    lines.write_text("\n".join(map(json.dumps, [*asked, {"file": "e.mov"}])))
    code, _, err, path = batch(lines, *SHORT)
    lines.unlink()
    (media / "broken.mp4").unlink()
    assert code == 0, err
    assert [row["index"] for row in rows(path)] == [0, 4]
    assert rows(path)[0]["tokens"] == tokens(caption(media / "a.mp4", media / "b.png", *SHORT, "--json"))
    reasons = [reject["reason"] for reject in rows(path.with_suffix(".job") / "rejects.jsonl")]
    for words, reason in zip(("broken.mp4 cannot be decoded", "nowhere.mp4 does not", "2 <video> marks for 1 clip"), reasons, strict=True):
        assert words in reason
        assert "\n" not in reason


def test_a_job_goes_on_only_with_the_same_frames(batch, media):
    assert batch(media, *SHORT, "--frames", 4)[0] == 0
    assert batch(media, *SHORT, "--frames", 4)[0] == 0
    other = batch(media, *SHORT, "--frames", 6)
    assert (other[0], other[1]) == (2, "")
    assert "options.frames" in other[2]


# --- mistakes -------------------------------------------------------------------------------------------------------------


def one_line(result, *words):
    code, out, err = result
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def test_models_that_read_no_video(capsys, caption, media, home, tmp_path):
    from mmspec.cli import app

    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:  # the shipped mini
        app(["caption", str(media / "a.mp4"), "--device", "cpu"])
    one_line((stopped.value.code, *capsys.readouterr()), "vlm reads no video", "qwen2_vl")
    small_seers.save_all(tmp_path)
    one_line(caption(media / "a.mp4", model=tmp_path / "reader"), "reads no pictures")


def test_in_a_job_of_a_model_that_reads_no_video_clips_are_rejects(batch, media, tmp_path):
    home = small_seers.save_all(tmp_path / "seers")
    code, _, err, path = batch(media, *SHORT, model=home / "seer")
    assert code == 0, err
    assert [row["file"] for row in rows(path)] == ["b.png", "d.png"]
    reasons = [reject["reason"] for reject in rows(path.with_suffix(".job") / "rejects.jsonl")]
    assert len(reasons) == 3
    assert all("reads no video" in reason for reason in reasons)


def test_mistakes_are_told_in_one_line(caption, media, batch):
    clip = media / "a.mp4"
    one_line(caption("nowhere.mp4", ASKED), "nowhere.mp4 does not exist")
    one_line(caption(clip, "<video> or <video>"), "2 <video> marks for 1 clip")
    one_line(caption(clip, "--fps", 2, "--frames", 3), "--fps and --frames were both given")
    one_line(caption(clip, "--fps", 0), "--fps is 0")
    one_line(caption(clip, "--frames", -1), "--frames is -1")
    one_line(caption(media, ASKED), "is a batch")
    refused(batch("nowhere.mp4"), "nowhere.mp4 does not exist")


@pytest.fixture
def check(capsys, home, media):
    def run(*args):
        from mmspec.cli import app

        capsys.readouterr()
        given = ("check", *args, "--picture", media / "a.mp4", "--max-new-tokens", 6, "--device", "cpu", "--json")
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in given])
        return (stopped.value.code, *capsys.readouterr())

    return run


def test_check_takes_clips(check, home):
    code, out, err = check("--model", home / "qwen2.5", "--drafter", home / "qwen2.5", "--draft-length", 2)
    assert (code, json.loads(out)["passed"]) == (0, True), err
