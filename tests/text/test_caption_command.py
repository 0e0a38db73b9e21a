"""`mmspec caption`: the tokens of the public call, one line for every mistake, and batches that go on where they stopped."""

import errno
import json
import shutil
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

import mmspec
from mmspec.jobs import captions as captioning
from mmspec.loading import text as pairs
from mmspec.loading.transformers import load_model
from tests import small_seers
from tests.commands import refused, runner
from tests.forked import Started

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return small_seers.save_all(tmp_path_factory.mktemp("seers"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return small_seers.drawn(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def batch(capsys, tmp_path, home):
    """The command into a file of its own: (exit code, stdout, stderr, path)."""
    return runner(capsys, tmp_path / "out", "caption", home / "seer", "answers.jsonl")


@pytest.fixture
def caption(capsys, home):
    """The command without a file: (exit code, stdout, stderr)."""

    def run(*args, model="seer"):
        from mmspec.cli import app

        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in ("caption", *args, "--model", home / model, "--device", "cpu")])
        return (stopped.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """Models are loaded once for all tests: commands leave them as they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "load_model", cache(load_model))
        yield


@pytest.fixture(autouse=True)
def place(tmp_path):
    (tmp_path / "out").mkdir()


def answered(home, paths, prompt, drafter=None, **options):
    """What the public call gives, from transformers' own loading."""
    model, processor = load_model(str(home / "seer"), "float32", "cpu")
    images = [Image.open(path).convert("RGB") for path in paths]
    inputs = processor(images=images, text=["<image>" * len(images) + prompt], return_tensors="pt")
    return mmspec.text.generate(model, inputs, drafter, **options)


SHORT = ("--max-new-tokens", 8)


def test_an_answer_is_that_of_the_public_call(caption, home, pictures):
    code, out, _ = caption(pictures[0], "how many red circles ?", *SHORT, "--json")
    found = json.loads(out)
    plain = answered(home, pictures[:1], "how many red circles ?", max_new_tokens=8)
    assert code == 0
    assert found["tokens"] == plain.sequences[0].tolist()
    assert (found["pictures"], found["prompt"]) == ([str(pictures[0])], "how many red circles ?")
    assert found["stats"]["exactness"] == "token-exact"
    assert json.loads(caption(pictures[1], *SHORT, "--json")[1])["prompt"] == "describe the picture."
    assert json.loads(caption(pictures[1], "how many red circles ?", *SHORT, "--json")[1])["tokens"] != found["tokens"]


def test_what_is_streamed_is_what_json_holds(caption, home, pictures):
    args = (pictures[0], *SHORT, "--draft-length", 3)
    code, out, err = caption(*args)
    assert code == 0
    assert out == json.loads(caption(*args, "--json")[1])["answer"] + "\n"
    assert "tokens per call" in err
    assert "\033[4m" in caption(*args, "--drafter", home / "seer", "--show-rounds")[1]


VIEWS = ("drop", "newline", "newline+drop", "caption")


@pytest.mark.parametrize("view", VIEWS)
def test_views_and_drafters_leave_the_answer_alone(caption, home, pictures, view):
    args = (pictures[2], "what do you see ?", *SHORT, "--temperature", 1, "--seed", 4, "--json")
    plain = json.loads(caption(*args, "--drafter", "none")[1])
    words = ("--caption", "two red circles") if view == "caption" else ()
    found = json.loads(caption(*args, "--drafter", home / "reader", "--view", view, *words, "--draft-length", 3)[1])
    assert found["tokens"] == plain["tokens"]
    assert (found["view"], plain["view"]) == (view, None)
    assert found["stats"]["drafted"] > 0


@pytest.mark.parametrize("view", [None, "own", "pruned", "own+newline"])
def test_a_drafter_with_eyes_is_the_target_itself(caption, home, pictures, view):
    chosen = () if view is None else ("--view", view)
    args = (pictures[0], *SHORT, "--drafter", home / "seer", *chosen, "--draft-length", 3, "--json")
    found = json.loads(caption(*args)[1])
    assert found["tokens"] == json.loads(caption(pictures[0], *SHORT, "--json")[1])["tokens"]
    if view in (None, "own"):
        assert found["stats"]["tokens_per_call"] == 4


def test_several_pictures_are_asked_about_together(caption, home, pictures):
    found = json.loads(caption(*pictures[:2], "is there a circle ?", *SHORT, "--json")[1])
    plain = answered(home, pictures[:2], "is there a circle ?", max_new_tokens=8)
    assert found["tokens"] == plain.sequences[0].tolist()
    marked = caption(*pictures[:2], "left <image> right <image> ?", *SHORT, "--json")
    assert json.loads(marked[1])["tokens"] != found["tokens"]


def test_a_chat_template_is_used_where_there_is_one(caption, pictures):
    def tokens(*args, **model):
        asked = (pictures[0], "how many circles", *SHORT, "--temperature", 1, "--json")
        return json.loads(caption(*asked, *args, **model)[1])["tokens"]

    chatted, raw = tokens(model="chatty"), tokens()
    assert chatted != raw
    assert tokens("--no-chat", model="chatty") == raw
    wrapped = caption(pictures[0], "how many circles ?", *SHORT, "--temperature", 1, "--json")
    assert chatted == json.loads(wrapped[1])["tokens"]
    refused_chat = caption(pictures[0], "--chat")
    assert (refused_chat[0], refused_chat[1]) == (2, "")
    assert "no chat template" in refused_chat[2]


def test_plain_decoding_beside(caption, pictures):
    code, out, _ = caption(pictures[0], *SHORT, "--compare", "--draft-length", 2)
    assert code == 0
    for words in ("plain", "lookup", "tokens per call", "the same tokens"):
        assert words in out
    found = json.loads(caption(pictures[0], *SHORT, "--compare", "--json")[1])
    assert found["compare"]["same"] is True
    assert found["compare"]["stats"]["tokens_per_call"] == 1


def test_odd_pictures_are_seen_as_people_see_them(caption, pictures, tmp_path):
    def tokens(path):
        return json.loads(caption(path, *SHORT, "--json")[1])["tokens"]

    upright = Image.open(pictures[3]).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 3
    upright.rotate(180).save(tmp_path / "turned.png", exif=exif)
    upright.convert("RGBA").save(tmp_path / "clear.png")
    upright.save(tmp_path / "moving.webp", lossless=True, save_all=True, append_images=[Image.new("RGB", upright.size, "red")])
    assert tokens(tmp_path / "turned.png") == tokens(tmp_path / "clear.png") == tokens(tmp_path / "moving.webp") == tokens(pictures[3])
    upright.rotate(180).save(tmp_path / "other.png")
    assert tokens(tmp_path / "other.png") != tokens(pictures[3])


# --- mistakes -------------------------------------------------------------------------------------------------------------

PICTURE = "PICTURE"
MISTAKES = {
    "no picture": ((), ("no picture", "picture.png")),
    "a picture that is not there": (("nowhere.png",), ("nowhere.png does not exist",)),
    "a second one that is not there": ((PICTURE, "nowhere.jpg"), ("nowhere.jpg does not exist",)),
    "a prompt alone": (("what is this?",), ("what is this? does not exist",)),
    "an empty prompt": ((PICTURE, " "), ("the prompt is empty",)),
    "two prompts": ((PICTURE, "what?", "--prompt", "who?"), ("both given",)),
    "more marks than pictures": ((PICTURE, "<image> and <image> ?"), ("2 <image> marks for 1 picture",)),
    "a caption without its view": ((PICTURE, "--caption", "red"), ("--view caption",)),
    "a caption view without one": ((PICTURE, "--drafter", "READER", "--view", "caption"), ("--caption TEXT",)),
    "two captions for a picture": (
        (PICTURE, "--drafter", "READER", "--view", "caption", "--caption", "a", "--caption", "b"),
        ("2 captions",),
    ),
    "an unknown view": ((PICTURE, "--drafter", "READER", "--view", "squint"), ("'squint'", "newline", "pooled")),
    "an unknown view among others": ((PICTURE, "--drafter", "READER", "--view", "drop+squint"), ("'squint'",)),
    "a view without a model": ((PICTURE, "--drafter", "lookup", "--view", "drop"), ("'lookup'", "draft with a model")),
    "own pixels without eyes": ((PICTURE, "--drafter", "READER", "--view", "own"), ("own",)),
    "a tree for a chain rule": ((PICTURE, "--drafter", "READER", "--tree", "4,2", "--accept", "block"), ("chains only",)),
    "nothing to say": ((PICTURE, "--max-new-tokens", 0), ("max_new_tokens is 0",)),
    "too much to say": ((PICTURE, "--max-new-tokens", 600), ("512 positions",)),
    "a folder without a place": (("FOLDER",), ("is a batch", "--out answers.jsonl")),
    "an unknown dtype": ((PICTURE, "--dtype", "float7"), ("'float7'",)),
    "an unknown rule": ((PICTURE, "--accept", "maybe"), ("'maybe'", "coupled")),
}


def filled(args, pictures, home):
    names = {PICTURE: pictures[0], "READER": home / "reader", "FOLDER": pictures[0].parent}
    return [names.get(arg, arg) for arg in args]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(caption, home, pictures, mistake):
    args, words = MISTAKES[mistake]
    code, out, err = caption(*filled(args, pictures, home))
    assert (code, out.strip()) == (2, ""), err
    assert err.startswith("mmspec: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def test_models_that_cannot_serve(caption, pictures, tmp_path):
    for model, words in (("blip", "'blip'"), ("reader", "reads no pictures"), ("nowhere", "cannot be loaded")):
        code, out, err = caption(pictures[0], model=model)
        assert (code, out) == (2, "")
        assert words in err or "does not exist" in err
        assert len(err.splitlines()) == 1


def test_a_broken_picture_is_one_line(caption, tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n....")
    code, out, err = caption(tmp_path / "a.png")
    assert (code, out) == (2, "")
    assert "a.png" in err
    assert len(err.splitlines()) == 1


# --- batches --------------------------------------------------------------------------------------------------------------


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_folder_is_a_batch_whose_answers_are_each_pictures_own(batch, caption, pictures):
    folder = pictures[0].parent
    code, out, _, path = batch(folder, "how many red circles ?", *SHORT, "--temperature", 1, "--seed", 3, "--batch-size", 2, "--json")
    found = rows(path)
    assert code == 0
    assert json.loads(out)["outputs"] == 5
    assert [list(row) for row in found] == [["index", "file", "prompt", "answer", "tokens", "finish_reason"]] * 5
    assert [row["file"] for row in found] == [f"{number}.png" for number in range(5)]
    for row in found:
        args = (folder / row["file"], "how many red circles ?", *SHORT, "--temperature", 1, "--seed", 3 + row["index"], "--json")
        assert json.loads(caption(*args)[1])["tokens"] == row["tokens"]
    before = path.read_bytes()
    shutil.rmtree(path.with_suffix(".job"))
    path.unlink()
    again = batch(folder, "how many red circles ?", *SHORT, "--temperature", 1, "--seed", 3, "--batch-size", 5, "--drafter", "none")
    assert again[0] == 0
    assert path.read_bytes() == before


def test_a_batch_goes_on_where_it_stopped(batch, pictures, monkeypatch):
    args = (pictures[0].parent, *SHORT, "--shard-size", 2)
    asked, check = [], captioning.CaptionRecord.check

    def stopping(self, record):
        asked.append(record["file"])
        if record["file"] == "3.png" and len(asked) == 4:
            raise FloatingPointError("stopped here")
        return check(self, record)

    monkeypatch.setattr(captioning.CaptionRecord, "check", stopping)
    code, _, err, path = batch(*args)
    assert (code, path.exists()) == (1, False)
    assert "stopped here" in err
    assert batch(*args)[0] == 0
    assert asked == ["0.png", "1.png", "2.png", "3.png", "2.png", "3.png", "4.png"]
    assert [row["file"] for row in rows(path)] == [f"{number}.png" for number in range(5)]
    refusing = batch(*args, "--prompt", "who ?")
    assert (refusing[0], refusing[1]) == (2, "")
    assert "options.prompt" in refusing[2]


def test_broken_pictures_are_rejects_and_the_rest_goes_on(batch, pictures, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(pictures[0].parent, folder)
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:200])
    (folder / "4.png").write_text("no picture")
    (folder / "5.txt").write_text("passed over")
    code, out, _, path = batch(folder, *SHORT, "--json")
    assert (code, json.loads(out)["rejects"]) == (0, 2)
    assert [row["file"] for row in rows(path)] == ["0.png", "2.png", "3.png"]
    rejects = rows(path.with_suffix(".job") / "rejects.jsonl")
    assert [reject["picture"] for reject in rejects] == [2, 5]
    assert [reject["reason"].split(" is ")[0] for reject in rejects] == ["picture 1.png", "picture 4.png"]  # wherever they lie


def test_a_picture_that_the_processor_refuses_is_a_reject(batch, pictures, monkeypatch):
    look = pairs.process_vision_inputs

    def picky(processor, requests, *rest):
        if any(each.pictures[0].width == 63 for each in requests):
            raise ValueError("too narrow")
        return look(processor, requests, *rest)

    folder = pictures[0].parent / "more"
    shutil.copytree(pictures[0].parent, folder)
    Image.new("RGB", (63, 64)).save(folder / "1.png")
    monkeypatch.setattr(pairs, "process_vision_inputs", picky)
    _, _, _, path = batch(folder, *SHORT)
    assert [row["index"] for row in rows(path)] == [0, 2, 3, 4]
    assert rows(path.with_suffix(".job") / "rejects.jsonl") == [{"index": 1, "file": "1.png", "picture": 2, "reason": "too narrow"}]
    shutil.rmtree(folder)


def test_pictures_by_name_and_requests_by_line(batch, caption, pictures, tmp_path):
    named = batch(pictures[1], pictures[0], "is there a circle ?", *SHORT)[-1]
    assert [row["file"] for row in rows(named)] == [str(pictures[1]), str(pictures[0])]
    lines = pictures[0].parent / "asked.jsonl"
    asked = [{"file": "1.png", "prompt": "is there a circle ?", "id": 7}, {"files": ["0.png", "1.png"]}, {"file": "nowhere.png"}]
    asked += [{}, {"file": "0.png", "prompt": 3}, {"file": "0.png", "prompt": "<image> <image>"}, {"file": "0.png", "prompt": "a " * 900}]
    lines.write_text("\n".join(map(json.dumps, asked)))
    _, _, _, path = batch(lines, *SHORT, out="lines.jsonl")
    lines.unlink()
    found = rows(path)
    assert [row["index"] for row in found] == [0, 1]
    assert (found[0]["id"], found[0]["tokens"]) == (7, rows(named)[0]["tokens"])
    both = json.loads(caption(*pictures[:2], *SHORT, "--json")[1])
    assert (found[1]["files"], found[1]["tokens"]) == (["0.png", "1.png"], both["tokens"])
    reasons = [reject["reason"] for reject in rows(path.with_suffix(".job") / "rejects.jsonl")]
    for reason, words in zip(reasons, ("nowhere.png", 'no "file"', '"prompt"', "2 <image> marks", "512 positions"), strict=True):
        assert words in reason


BATCH_MISTAKES = {
    "an empty folder": (("EMPTY",), ("holds no picture",)),
    "a folder that is not there": (("nowhere",), ("nowhere does not exist",)),
    "a folder and a picture": (("FOLDER", PICTURE), ("given with other pictures",)),
    "comparing": ((PICTURE, "--compare"), ("both given",)),
    "no batch": (("FOLDER", "--batch-size", 0), ("--batch-size is 0",)),
    "an engine of steam": (("FOLDER", "--engine", "steam"), ("'steam'",)),
    "a distribution that follows the clock": (("FOLDER", "--accept", "block", "--temperature", 1), ("--draft-length a number",)),
    "an unknown view": (("FOLDER", "--drafter", "READER", "--view", "squint"), ("'squint'",)),
}


@pytest.mark.parametrize("mistake", BATCH_MISTAKES)
def test_a_mistake_writes_nothing(batch, home, pictures, tmp_path, mistake):
    args, words = BATCH_MISTAKES[mistake]
    (tmp_path / "empty").mkdir()
    refused(batch(*[tmp_path / "empty" if arg == "EMPTY" else arg for arg in filled(args, pictures, home)]), *words)


def test_another_file_is_not_written_over(batch, pictures, tmp_path):
    (tmp_path / "out" / "answers.jsonl").write_text("mine")
    code, out, err, path = batch(pictures[0])
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert "choose another name" in err
    (tmp_path / "out" / "folder.jsonl").mkdir()
    assert "is a folder" in batch(pictures[0], out="folder.jsonl")[2]


def test_all_broken_is_told(batch, tmp_path):
    (tmp_path / "a.png").write_text("no")
    code, out, err, path = batch(tmp_path / "a.png")
    assert (code, out, path.exists()) == (2, "", False)
    assert "all 1 pictures were rejected" in err


def full(*handle):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["mmspec.jobs.engine.folder.os.fsync", "mmspec.jobs.captions_job.shutil.copyfileobj"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(batch, pictures, monkeypatch, where):
    """When a shard is written, and when the shards become one file."""
    args = (pictures[0].parent, *SHORT, "--shard-size", 2)
    with monkeypatch.context() as patch:
        patch.setattr(where, full)
        code, out, err, path = batch(*args)
    assert (code, out, path.exists()) == (1, "", False)
    assert "space" in err
    assert len(err.splitlines()) == 1
    assert {each.name for each in path.parent.iterdir()} <= {"answers.job"}
    code, out, _, path = batch(*args)
    assert (code, len(rows(path))) == (0, 5)
    assert ("3 of them from before" in out) == ("shutil" in where)


# --- the other commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def check(capsys, home, pictures):
    """`mmspec check` of the target about a picture: (exit code, stdout, stderr)."""

    def run(*args, model="seer"):
        from mmspec.cli import app

        capsys.readouterr()
        given = ("check", *args, "--model", home / model, "--picture", pictures[0], "--max-new-tokens", 6, "--device", "cpu", "--json")
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in given])
        return (stopped.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize("rule", [(), ("--accept", "block", "--temperature", 1, "--draft-length", 2)])
def test_check_holds_pictures_to_plain_decoding(check, home, rule):
    code, out, _ = check("--drafter", home / "reader", "--view", "newline", *rule)
    found = json.loads(out)
    assert (code, found["passed"]) == (0, True)
    kinds = {each["name"].partition(":")[0].partition(",")[0] for each in found["findings"]}
    assert {"logits", "greedy", "coupled", "drafter"} <= kinds
    assert ("block" in kinds) == bool(rule)
    assert found["stats"]["drafted"] > 0


def test_check_fails_where_the_target_says_otherwise(check, monkeypatch):
    from mmspec.bench.check import verify

    plain = verify.run_transformers

    def other(*args):
        out = plain(*args)
        out.tokens[0][0] += 1
        return out

    monkeypatch.setattr(verify, "run_transformers", other)
    code, out, _ = check()
    assert code == 1
    assert [each["passed"] for each in json.loads(out)["findings"] if each["name"].startswith("greedy: as transformers")] == [False]


def test_check_of_a_model_that_reads_no_pictures(check):
    code, out, err = check(model="reader")
    assert (code, out) == (2, "")
    assert "reads no pictures" in err


def test_models_lists_who_sees_and_what_drafters_read():
    from mmspec.commands.models import drafters, families, views
    from mmspec.models.families.registry import SEES

    assert {"kind": "models that see", "models": ", ".join(SEES)} in families()
    assert {"drop", "newline", "caption", "own", "pooled", "pruned"} < {row["name"] for row in views()}
    assert {"text", "vlm"} < {row["name"] for row in drafters()}


def test_the_mini_answers_by_default(capsys):
    from mmspec.cli import app
    from mmspec.minis import HOME

    def told(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app(["caption", str(HOME / "vlm" / "examples" / "four.png"), "--device", "cpu", "--json", *args])
        assert stopped.value.code == 0
        return json.loads(capsys.readouterr().out)

    found, plain = told("--draft-length", "5"), told("--drafter", "none")
    assert found["answer"].startswith("the picture shows four shapes")
    assert found["tokens"] == plain["tokens"]
    assert (found["model"], found["drafter"], found["stats"]["tokens_per_call"] > 4) == ("vlm", "model", True)
    assert told("--drafter", "text", "--view", "newline", "--model", "mini")["tokens"] == plain["tokens"]


def test_stdout_holds_one_json_object_and_nothing_else(home, pictures, tmp_path):
    """In a process of its own: what any library writes to the file descriptors is seen."""
    (tmp_path / "command.py").write_text("from mmspec.cli import main\n\nmain()\n")
    words = ["caption", pictures[0], "--model", home / "seer", "--max-new-tokens", "4", "--json"]
    done = Started(tmp_path / "command.py", *words, cwd=ROOT, folder=tmp_path).finish(timeout=240)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {
        *("pictures", "prompt", "answer", "tokens", "finish_reason", "model", "drafter", "view", "settings", "stats")
    }
    assert not done.stderr
