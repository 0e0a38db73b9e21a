"""The command line: exit codes, one clear line for every mistake, clean JSON, nothing half-written."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from mmspec import __version__
from mmspec.cli import app
from mmspec.drafters.retrieval.pools import Pools
from tests import tiny

ROOT = Path(__file__).parents[1]
COMMANDS = ("demo", "text", "image", "speech", "caption", "recommend", "check", "explain", "plan", "bench", "models")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny.save_all(root)
    return root


@pytest.fixture
def mmspec(capsys):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return stopped.value.code, out, err

    return run


def refused(result: tuple[int, str, str], *words: str) -> None:
    """Exit 2, nothing on stdout, one line on stderr with all of `words`."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("mmspec: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_and_the_common_options(mmspec, command):
    code, out, _ = mmspec(command, "--help")
    assert code == 0
    running = {"models": (), "plan": ("--seed",)}.get(command, ("--seed", "--device"))  # these run no model
    for part in ("Examples:", f"mmspec {command}", "--json", *running):
        assert part in out


def test_without_a_command_the_help_page_is_shown(mmspec):
    code, out, err = mmspec()
    assert (code, err) == (2, "")
    assert all(command in out for command in COMMANDS)
    assert mmspec("--version") == (0, f"{__version__}\n", "")


def test_help_loads_no_heavy_library():
    script = "import sys, mmspec.cli; assert not {'transformers', 'matplotlib', 'diffusers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=120)


# --- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES = {
    "a missing model": (("a", "--model", "./nowhere"), ("./nowhere does not exist",)),
    "an empty prompt": (("",), ("the prompt is empty",)),
    "no prompt": ((), ("no prompt",)),
    "nothing to generate": (("a", "--max-new-tokens", 0), ("max_new_tokens is 0",)),
    "an unknown drafter": (("a", "--drafter", "oracle"), ("'oracle'", "lookup", "suffix", "model's path")),
    "an unknown rule": (("a", "--accept", "maybe"), ("'maybe'", "coupled", "block", "typical")),
    "an unknown device": (("a", "--device", "abacus"), ("'abacus'", "cuda")),
    "an unknown dtype": (("a", "--dtype", "float7"), ("'float7'", "bfloat16")),
    "a tree of words": (("a", "--tree", "oak"), ("'oak'", "4,2,1")),
    "a tree without a model": (("a", "--tree", "4,2", "--drafter", "lookup"), ("grows no trees",)),
    "a tree for a chain rule": (("a", "--tree", "4,2", "--accept", "block", "--temperature", 1), ("chains only",)),
    "a draft length of words": (("a", "--draft-length", "long"), ("'long'", "auto")),
    "a negative temperature": (("a", "--temperature", -1), ("temperature is -1",)),
    "not a number": (("a", "--seed", "x"), ("--seed", "--help")),
    "an unknown option": (("a", "--sped", 3), ("--sped", "--help")),
    "a missing config": (("a", "--config", "nowhere.yaml"), ("nowhere.yaml does not exist",)),
    "an override of no entry": (("a", "--set", "run.seeed=1"), ("run.seeed", "did you mean 'seed'")),
    "sound for a text model": (("--audio", "x.wav"), ("reads text, not sound",)),
    "a chat template that is not there": (("a", "--chat"), ("no chat template",)),
    "a missing datastore": (("a", "--drafter", "nowhere.npy"), ("nowhere.npy does not exist",)),
    "missing pools": (("a", "--drafter", "nowhere.npz"), ("pools nowhere.npz do not exist",)),
    "output without input": (("a", "--output", "x"), ("--input",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(mmspec, mistake):
    args, words = MISTAKES[mistake]
    refused(mmspec("text", *args), *words)


def test_an_unknown_command_is_told_in_one_line(mmspec):
    refused(mmspec("tetx"), "tetx")


def test_a_config_is_strict(mmspec, tmp_path):
    path = tmp_path / "mine.yaml"
    cases = {
        "run: {seeed: 1}": ("run.seeed", "max_new_tokens, temperature"),
        "runn: {seed: 1}": ("'runn'", "target, drafter, accept, run"),
        "accept: {kind: typical, options: {beta: 1}}": ("'beta'", "epsilon"),
        "drafter: {kind: lookup, options: {n: 1}}": ("'n'", "max_ngram"),
        "drafter: {kind: psychic}": ("'psychic'", "lookup"),
        "drafter: {kind: pools}": ("'pools' needs path",),
        "drafter: {kind: pools, path: a.npz, options: {key: books}}": ("'key'", "keys"),
    }
    for text, words in cases.items():
        path.write_text(text)
        refused(mmspec("text", "a", "--config", path), *words)


def test_a_prompt_longer_than_the_model_allows(mmspec, models, tmp_path):
    refused(mmspec("text", "word " * 70, "--model", models / "llama", "--max-new-tokens", 4), "64 positions", "shorten")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\n" + "word " * 70)
    refused(mmspec("text", "--input", prompts, "--model", models / "llama", "--max-new-tokens", 4), "line 3", "64 positions")


def test_checkpoints_that_cannot_serve(mmspec, models):
    run = ("text", "a", "--max-new-tokens", 4, "--model")
    refused(mmspec(*run, models / "rwkv"), "cannot be rolled back", "plain transformers generation")
    refused(mmspec(*run, models / "llama", "--drafter", models / "foreign"), "mismatched vocabularies", "same tokenizer")
    refused(mmspec(*run, models / "llama", "--drafter", "model"), "the mini's own")
    refused(mmspec(*run, models / "bare"), "tokenizer")
    refused(mmspec(*run, models), "cannot be loaded")
    refused(mmspec("check", "--model", models / "llama"), "--prompts FILE")


def test_broken_weights_fail_with_row_and_position(mmspec, models):
    code, out, err = mmspec("text", "a", "--model", models / "nan", "--max-new-tokens", 4)
    assert (code, out) == (1, "")
    assert "NaN" in err
    assert "row 0 at output position 0" in err
    assert len(err.splitlines()) == 1


def test_verbose_shows_the_traceback(mmspec, models):
    code, _, err = mmspec("text", "a", "--model", models / "nan", "--max-new-tokens", 4, "--verbose")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize("command", [("demo", "--out"), ("bench", "--output"), ("bench", "--html")])
def test_a_place_that_cannot_be_written_to(mmspec, tmp_path, command):
    refused(mmspec(*command, tmp_path / "nowhere" / "file"), "cannot write", "nowhere")
    refused(mmspec(*command, tmp_path), "it is a folder")


# --- text -------------------------------------------------------------------------------------------------------------


def test_text_streams_what_json_holds(mmspec):
    args = ("text", "Story: The bird", "--max-new-tokens", 12, "--draft-length", 4)
    code, streamed, err = mmspec(*args)
    assert code == 0
    assert "tokens per call" in err
    assert "token-exact" in err
    code, out, _ = mmspec(*args, "--json")
    found = json.loads(out)
    assert code == 0
    assert streamed == found["text"] + "\n"
    assert len(found["tokens"]) == found["stats"]["tokens"] <= 12
    plain = json.loads(mmspec(*args, "--drafter", "none", "--json")[1])
    assert plain["tokens"] == found["tokens"]
    assert plain["stats"]["tokens_per_call"] == 1


def test_sampling_depends_on_the_seed_and_not_on_the_drafter(mmspec):
    def tokens(*extra):
        return json.loads(mmspec("text", "Story:", "--max-new-tokens", 10, "--temperature", 0.8, "--json", *extra)[1])["tokens"]

    assert tokens("--seed", 3) == tokens("--seed", 3, "--drafter", "suffix") != tokens("--seed", 4)


def test_pools_from_a_file_draft_for_the_group_a_config_names(mmspec, tmp_path):
    def answer(*extra):
        return json.loads(mmspec("text", "Story:", "--max-new-tokens", 24, "--json", *extra)[1])

    plain, file, config = answer("--drafter", "none"), tmp_path / "pools.npz", tmp_path / "mine.yaml"
    pools = Pools()
    pools.learn("stories", [plain["tokens"]])
    pools.save(file)
    config.write_text(f"drafter: {{kind: pools, path: {file}, length: 8, options: {{keys: stories, own: 1}}}}\nrun: {{max_new_tokens: 24}}")
    shared, own = answer("--drafter", file, "--draft-length", 8), answer("--config", config)
    assert shared["tokens"] == own["tokens"] == plain["tokens"]
    assert own["stats"]["target_calls"] <= 6 < shared["stats"]["target_calls"]


def test_stops_and_rounds(mmspec):
    _, out, _ = mmspec("text", "Story: The bird", "--max-new-tokens", 40, "--stop", ".", "--show-rounds", "--draft-length", 4)
    assert out.rstrip().removesuffix("\033[24m").endswith(".")
    assert "\033[4m" in out


def test_a_prompt_from_standard_input(mmspec, monkeypatch):
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("Story: The bird\n"))
    code, out, _ = mmspec("text", "-", "--max-new-tokens", 3, "--json")
    assert code == 0
    assert json.loads(out)["prompt"] == "Story: The bird"


def test_a_speech_recogniser_hears_a_file(mmspec, models, tmp_path):
    sound, long = tmp_path / "a.wav", tmp_path / "long.wav"
    soundfile.write(sound, 0.1 * np.sin(np.arange(6000) / 9), 11025)
    soundfile.write(long, np.zeros(40000), 16000)
    run = ("text", "--model", models / "whisper", "--max-new-tokens", 4)
    plain = json.loads(mmspec(*run, "--audio", sound, "--drafter", "none", "--json")[1])
    drafted = json.loads(mmspec(*run, "--audio", sound, "--drafter", models / "whisper", "--json")[1])
    assert plain["tokens"] == drafted["tokens"]
    refused(mmspec(*run, "--audio", long), "1 s at once")
    refused(mmspec(*run, "--audio", Path(__file__)), "cannot be read")
    refused(mmspec(*run, "hello"), "reads sound")


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_file_of_prompts_gives_the_same_in_any_batch(mmspec, tmp_path):
    prompts, found = tmp_path / "prompts.jsonl", {}
    prompts.write_text("".join(json.dumps({"prompt": f"Story: {n} birds", "id": n}) + "\n" for n in range(3)))
    for size in (1, 2):
        out = tmp_path / f"{size}.jsonl"
        code, text, _ = mmspec("text", "--input", prompts, "--output", out, "--batch-size", size, "--max-new-tokens", 6, "--temperature", 1)
        assert (code, text) == (0, "")
        found[size] = [json.loads(line) for line in out.read_text().splitlines()]
    assert found[1] == found[2]
    assert [row["id"] for row in found[1]] == [0, 1, 2]
    assert set(found[1][0]) == {"line", "prompt", "id", "text", "tokens", "finish_reason"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.jsonl", "2.jsonl", "prompts.jsonl"]


def test_results_without_an_output_go_to_stdout(mmspec, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("One\n\nTwo\n")
    _, out, _ = mmspec("text", "--input", prompts, "--max-new-tokens", 2)
    assert [json.loads(line)["line"] for line in out.splitlines()] == [1, 3]
    _, out, _ = mmspec("text", "--input", prompts, "--max-new-tokens", 2, "--json")
    assert len(json.loads(out)["results"]) == 2


def test_an_error_leaves_nothing_half_written(mmspec, models, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out.jsonl"
    prompts.write_text("One\nTwo\n")
    out.write_text("before")
    code, _, _ = mmspec("text", "--input", prompts, "--output", out, "--model", models / "nan", "--max-new-tokens", 2)
    assert code == 1
    assert out.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "prompts.txt"]


def test_bad_files_of_prompts(mmspec, tmp_path):
    path = tmp_path / "prompts.jsonl"
    refused(mmspec("text", "--input", path), "does not exist")
    for text, words in {"": ("no prompt",), "{": ("line 1",), '{"prompt": "a"}\n{"prompt": " "}': ("line 2", '"prompt"')}.items():
        path.write_text(text)
        refused(mmspec("text", "--input", path), *words)
    path.write_text('{"prompt": "a"}')
    refused(mmspec("text", "a", "--input", path), "both given")
    refused(mmspec("text", "--input", path, "--batch-size", 0), "--batch-size is 0")


# --- the streams of a real process ------------------------------------------------------------------------------------


def test_stdout_holds_one_json_object_and_nothing_else():
    command = [sys.executable, "-m", "mmspec.cli", "text", "Story:", "--max-new-tokens", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True)
    assert set(json.loads(done.stdout)) == {"prompt", "text", "tokens", "finish_reason", "model", "drafter", "settings", "stats"}
    assert "transformers" not in done.stderr


def test_models_lists_everything_there_is(mmspec):
    from mmspec.minis import NAMES
    from mmspec.recsys import METHODS
    from mmspec.run.registry import RULES, SOURCES

    found = json.loads(mmspec("models", "--json")[1])
    assert [mini["name"] for mini in found["minis"]] == list(NAMES)
    drafters = {row["name"]: (row["is_a"], row["needs"], row["refuses"]) for row in found["drafters"]}
    assert {name: (entry.is_a, entry.needs, entry.refuses) for name, entry in SOURCES.items()}.items() <= drafters.items()
    shown = {row["name"]: (row["is_a"], row["needs"], row["refuses"]) for row in found["accept_rules"]}
    assert {name: (entry.is_a, entry.needs, entry.refuses) for name, entry in RULES.items()}.items() <= shown.items()
    rules = {row["name"]: row["exactness"] for row in found["accept_rules"]}
    assert set(rules) == {"exact", *RULES}
    assert (rules["coupled"], rules["block"], rules["typical"]) == ("token-exact", "distribution-exact", "lossy")
    modes = {row["name"]: row["exactness"] for row in found["recommendation_modes"]}
    assert set(modes) == set(METHODS)
    assert (modes["plain"], modes["strict"]) == ("token-exact", "token-exact")
    assert "accept rules" in mmspec("models")[1]
