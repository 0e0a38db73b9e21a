"""Wrong command lines of every kind: (arguments, whether they must be refused).

    python -m tests.fuzz.commands           # every line; --share 0.1 a part that is drawn with a fixed seed, --only NAME those of a command

The options are found, not listed: `generated` gives every option and argument of every command every value of its type that may go wrong.
`wrong_options` adds values that one option must refuse.
"""

import io
import shutil
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, get_args, get_origin
from unittest.mock import patch

import huggingface_hub.constants
import pandas as pd
import typer
from PIL import Image

from mmspec import minis
from mmspec.cli import app
from tests.fuzz.files import broken_files
from tests.fuzz.harness import Report, bounded_memory, main
from tests.fuzz.harness import command as outcome_of_command

Case = tuple[list[str], bool]
LONG = "x" * 4000
BAD_INTS = ("x", "", "1.5", "-1", "nan", "inf", "1e3", "9" * 30, "0x10", "٣x", "--", "1 2")
BAD_FLOATS = ("x", "", "nan", "inf", "-inf", "-1", "1e999", "1,5", "0x1p3", "½")
BAD_NAMES = ("", "nope", "os:system", "builtins:print", "../..", "💥", LONG, "a\nb", "none ", "LOOKUPP")
BAD_LENGTHS = (*BAD_INTS, "1000000", "automatic", "²")
BAD_TREES = ("oak", "", "0", "1000,1000,1000", "4,,2", "-1", "1.5", "nowhere.json", "comb,2", "9" * 30, "²", ",".join(["2"] * 40))
BAD_DEVICES = ("abacus", "", "cuda:99", "cpu:x", "💥", "meta", "mps")
BAD_DTYPES = ("float7", "", "int8", "float64", "FLOAT32")
SEED = ("x", "", "1.5", "nan", "inf", "1e3")


def _files(folder: Path, *endings: str) -> tuple[str, ...]:
    """Places that hold no file of the kind wanted."""
    broken = [str(folder / f"{kind}.{ending}") for kind in ("empty", "junk") for ending in endings]
    return (*broken, str(folder), "nowhere/at/all", str(folder / "good.txt" / "below"), str(folder / "loop"), LONG, "")


def _outputs(folder: Path, ending: str) -> tuple[str, ...]:
    """Places that cannot be written to."""
    return (
        str(folder),
        f"nowhere/at/all{ending}",
        str(folder / "good.txt" / f"below{ending}"),
        f"{LONG}{ending}",
        "",
        "/",
        ".",
        "/proc/nothing",
    )


def wrong_options(folder: Path) -> dict[str, tuple[list[str], dict[str, tuple[str, ...]]]]:
    """Command name -> (arguments of a small request, wrong values of each option)."""
    model = (
        *_files(folder, "bin", "safetensors"),
        "nope",
        str(folder / "model"),
        str(folder / "strange"),
        str(folder / "drafter"),
        "../..",
        "💥",
    )
    sampling = {"--temperature": BAD_FLOATS, "--top-k": BAD_INTS, "--top-p": (*BAD_FLOATS, "0", "1.5"), "--seed": SEED}
    engine = {"--drafter": (*BAD_NAMES, "nowhere.npy", str(folder / "junk.npy"), str(folder / "junk.npz"), str(folder / "empty.npz"))}
    engine |= {
        "--accept": BAD_NAMES,
        "--draft-length": BAD_LENGTHS,
        "--tree": (*BAD_TREES, str(folder / "gap.json"), str(folder / "deep.json")),
    }
    where = {"--device": BAD_DEVICES, "--dtype": BAD_DTYPES}
    config = {
        "--config": (*_files(folder, "yaml"), str(folder / "deep.yaml"), str(folder / "list.json")),
        "--set": ("x", "run.seeed=1", ""),
    }
    config["--config"] = tuple(path for path in config["--config"] if not path.endswith("empty.yaml"))
    text = {
        "--model": model,
        **sampling,
        **engine,
        **where,
        **config,
        "--max-new-tokens": (*BAD_INTS, "0"),
        "--repetition-penalty": (*BAD_FLOATS, "0"),
    }
    prompts = {"--prompts": _files(folder, "txt", "jsonl", "json"), "--limit": (*BAD_INTS, "0")}
    shards = {"--batch-size": (*BAD_INTS, "0"), "--shard-size": (*BAD_INTS, "0"), "--engine": BAD_NAMES}
    vision = {
        "--method": BAD_NAMES,
        "--compare": BAD_NAMES,
        "--window": (*BAD_LENGTHS, "0"),
        "--drift-budget": BAD_FLOATS,
        "--guidance": BAD_FLOATS,
    }
    vision |= {
        "--temperature": BAD_FLOATS,
        "--top-k": BAD_INTS,
        "--head-steps": (*BAD_INTS, "0"),
        "--sigma-out": BAD_FLOATS,
        "--seed": SEED,
    }
    vision |= {
        "--size": ("x", "", "0", "-1", "3x", "9" * 30, "64x0"),
        "--grid": (*BAD_INTS, "0", "1000000"),
        "--out": _outputs(folder, ".png"),
        "--model": model,
    }
    speech = {"--model": model, "--voice": BAD_NAMES, **where, **sampling, **engine, "--max-seconds": (*BAD_FLOATS, "0", "100000")}
    speech |= {
        "--count": (*BAD_INTS, "0", "1000000"),
        "--file": _files(folder, "txt"),
        "--out": _outputs(folder, ".wav"),
        "--format": ("wav", "nope"),
    }
    speech |= {"--sample-rate": (*BAD_INTS, "0", "10")}
    items = {
        "--history": ("x", "", "999999999", "1,x", ",", "-5", "1.5"),
        "--user": (*BAD_INTS,),
        "--model": model,
        **where,
        "--k": (*BAD_INTS, "0", "1000000"),
    }
    items |= {"--catalogue": _files(folder, "parquet", "json"), "--only": _files(folder, "txt", "parquet"), "--mode": BAD_NAMES}
    items |= {
        "--drafter": BAD_NAMES,
        "--draft-length": BAD_LENGTHS,
        "--width": (*BAD_INTS, "0", "1", "10000000"),
        "--temperature": (*BAD_FLOATS,),
    }
    items |= {
        "--seed": SEED,
        "--rows": (*BAD_INTS, "0"),
        "--batch-size": (*BAD_INTS, "0"),
        "--shard-size": (*BAD_INTS, "0"),
        "--engine": BAD_NAMES,
    }
    seeing = {name: values for name, values in text.items() if name != "--tree"} | {"--view": BAD_NAMES, "--caption": ("a dog",)}
    seeing |= {"--fps": BAD_FLOATS, "--frames": (*BAD_INTS, "0"), "--prompt": ("", " ")}
    picture = str(folder / "picture.png")
    checks = {name: values for name, values in text.items() if name != "--repetition-penalty"} | prompts | {"--margin": BAD_FLOATS}
    checks |= {"--modality": BAD_NAMES, "--target": ("x", "os:nothing", "nowhere:f", ":", ""), "--method": BAD_NAMES, "--view": BAD_NAMES}
    checks |= {"--picture": _files(folder, "png")}
    bench = {
        name: values for name, values in checks.items() if name not in ("--config", "--set", "--modality", "--target", "--method", "--view")
    }
    del bench["--margin"], bench["--picture"]
    bench |= {
        "--repeats": (*BAD_INTS, "0"),
        "--batch-size": (*BAD_INTS, "0"),
        "--output": _outputs(folder, ".json"),
        "--html": _outputs(folder, ".html"),
    }
    explain = {name: values for name, values in text.items() if name != "--repetition-penalty"} | prompts
    explain |= {"--repeats": (*BAD_INTS, "0"), "--batch-size": (*BAD_INTS, "0"), "--reference": model}
    explain |= {"--output": _outputs(folder, ".json"), "--html": _outputs(folder, ".html")}
    serving = {
        "--text": model,
        "--drafter": BAD_NAMES,
        "--draft-length": BAD_LENGTHS,
        "--port": (*BAD_INTS, "65536"),
        "--host": ("no.such.host.invalid", ""),
        **dict.fromkeys(("--max-rows", "--max-queue", "--max-tokens", "--max-inputs", "--max-body"), (*BAD_INTS, "0")),
        **dict.fromkeys(("--timeout", "--grace", "--max-seconds"), BAD_FLOATS),
    }
    plan = {f"--{name}-ms": BAD_FLOATS for name in ("target", "draft", "column", "row", "handover")}
    plan |= {f"--{name}": (*BAD_INTS, "0") for name in ("rows", "stages", "free-columns", "nodes", "tokens")}
    plan |= {"--prompt": BAD_INTS, "--sibling-factor": BAD_FLOATS, "--seed": SEED, "--measured": _files(folder, "json")}
    plan |= {"--acceptance": (*BAD_FLOATS, "0.8,", "2", *_files(folder, "json")), "--exit-acceptance": (*BAD_FLOATS, "0.5")}
    page = {name: serving[name] for name in ("--text", "--drafter", "--port", "--host")}
    page |= {"--draft-length": (*BAD_LENGTHS, "thompson"), "--seed": SEED, "--device": BAD_DEVICES}
    return {  # pyright: ignore[reportReturnType]
        "plan": (["--target-ms", "30", "--draft-ms", "3", "--acceptance", "0.8"], plan),
        "text": (["Story:", "--max-new-tokens", "2"], text | {"--audio": _files(folder, "wav"), "--chat": ("",), "--stop": ("",)}),
        "text --input": (
            ["--input", str(folder / "good.txt"), "--max-new-tokens", "2"],
            {"--output": _outputs(folder, ".jsonl"), "--batch-size": (*BAD_INTS, "0")},
        ),
        "image": (["a large red star top left", "--method", "plain", "--out", "o.png"], vision | where),
        "speech": (["two", "--max-seconds", "0.2", "--out", "o.wav"], speech),
        "speech --file": (
            ["--file", str(folder / "lines.txt"), "--max-seconds", "0.2", "--out", "sounds"],
            shards | {"--format": BAD_NAMES},
        ),
        "recommend": (["--history", "12,873", "--k", "2"], {name: each for name, each in items.items() if name not in ("--shard-size",)}),
        "caption": ([picture, "--max-new-tokens", "2"], seeing),
        "caption --out": (
            [picture, "--max-new-tokens", "2", "--out", "a.jsonl"],
            shards | {"--out": (str(folder), "", "/proc/nothing/a.jsonl")},
        ),
        "check": (["--limit", "1"], checks),
        "bench": (["--limit", "1"], bench),
        "explain": (["--limit", "1", "--max-new-tokens", "2"], explain),
        "serve": (["--text", "mini", "--port", "70000"], serving),  # a port that there is not: nothing is served
        "ui": (["--text", "mini", "--port", "70000"], page),
        "demo": (["--quick"], {"--out": _outputs(folder, ".html"), "--device": BAD_DEVICES, "--seed": SEED}),
        "models": ([], {"--seed": SEED, "--device": BAD_DEVICES, "--sped": ("1",), "--json": ("x", "1")}),
        "recipe": ([], {"--copy": ("nowhere", ""), "--path": ("nope", "../../etc/passwd")}),
    }


def single(folder: Path) -> Iterator[Case]:
    """One wrong option at a time, for every option of every command."""
    for command, (base, options) in wrong_options(folder).items():
        for name, values in options.items():
            for value in values:
                flag = name in ("--chat", "--path")
                yield [*command.split()[:1], *base, name, *([value] if not flag or value else [])], True


def combined(folder: Path, count: int) -> Iterator[Case]:
    """`count` command lines with two wrong options, in any order; the seed is fixed."""
    random, table = Random(0), wrong_options(folder)
    names = [name for name in table if len(table[name][1]) > 1]
    for _ in range(count):
        command = random.choice(names)
        base, options = table[command]
        chosen = random.sample(sorted(options), 2)
        words = [word for name in chosen for word in (name, random.choice(options[name]))]
        last = random.random() < 0.5 or all(name in base for name in chosen)  # of an option that is given twice the last one counts
        yield [*command.split()[:1], *(base + words if last else words + base)], True


def contradictions(folder: Path) -> Iterator[Case]:
    """Options that do not go together, requests without what they need, and unknown words."""
    good, picture = str(folder / "good.txt"), str(folder / "picture.png")
    lines = (
        *("tetx", "text", "image", "text a --output x", f"text a --input {good}", f"text --input {good} --show-rounds", "text a --json=3"),
        *(f"text --input {good} --audio x.wav", "text a --audio nowhere.wav", "text a --sped 3", "text a b", "text a --seed 1 --seed x"),
        *("text a --tree 4,2 --drafter lookup", "text a --tree 4,2 --accept block --temperature 1", "text a --drafter none --tree 2,1"),
        *(
            "text a --top-k 5",
            "text a --top-p 0.5",
        ),
        *(
            "image star --head-steps 5",
            "image star --sigma-out 0.1",
            "image coat --model continuous --top-k 5",
            "image nosuchclass --model vision-fashion",
        ),
        *(
            "image coat --model continuous --temperature 0",
            "image star --out o.xyz",
        ),
        *("image star --window 5 --method plain", "image coat --model continuous --head-steps 0", "image star --size 99", "image"),
        *(
            "speech",
            f"speech two --file {good} --out s",
            f"speech --file {good}",
            "speech two --format wav",
            "speech two --stream --out o.flac",
        ),
        *(
            "speech two --stream --sample-rate 16000 --out o.wav",
            "speech two --voice a --voice b",
            "speech two --out o.xyz",
            "speech two --shard-size 5",
        ),
        *("speech two --batch-size 3", "speech two --engine ray", "speech 💥"),
        *(
            "recommend",
            "recommend x.parquet",
            "recommend nowhere.parquet out",
            "recommend --history 12 --compare --mode plain",
            "recommend --history 12 out",
        ),
        *(
            f"recommend {folder / 'junk.parquet'} out",
            f"recommend {folder / 'empty.parquet'} out",
            f"recommend {good} out",
            "recommend --history 12 --user 3 x out",
        ),
        *(
            "recommend --history 12 --shard-size 5",
            "recommend --history 12 --user-column x",
            "recommend --history 12 --width 50 --mode plain",
        ),
        *(
            "recommend --history 12 --mode strict --drafter none --width 9",
            "recommend --history 12 --temperature 2",
            "recommend --history 12 --batch-size 3",
        ),
        *(
            "caption",
            "caption nowhere.png",
            f"caption {folder}",
            f"caption {folder / 'junk.png'}",
            f"caption {folder / 'empty.png'}",
            f"caption {folder / 'junk.mp4'}",
        ),
        *(
            f"caption {picture} what --prompt that",
            f"caption {picture} --caption x",
            f"caption {picture} --view caption",
            f"caption {picture} --fps 1 --frames 2",
        ),
        *(
            f"caption {picture} --out a.jsonl --compare",
            f"caption {picture} --out a.jsonl --show-rounds",
            f"caption {picture} --model mini --view own --drafter lookup",
        ),
        *(
            f"caption {picture} --batch-size 5",
            f"caption {picture} --engine ray",
            f"caption {picture} --frames 3",
            f"caption {picture} --shard-size 3",
        ),
        *(
            "check --method jacobi",
            "check --model speech --method x",
            "check --model vision --tree 2,1",
            "check --model vision --accept block",
            "check --model recsys --tree 2",
        ),
        *(
            "check --model vision --drafter lookup",
            "check --model speech --view drop",
            "check --view drop",
            "check --target os:system",
            "check --target os:getcwd --limit 1",
        ),
        *(
            "check --model vision --picture x.png",
            "explain --drafter none",
            "explain extra",
            "explain --top-k 5",
            "explain --chat",
            "explain --limit 1 --batch-size 0",
            "check --margin nan",
            "check --model vision --margin 0.5",
            "check --model speech --temperature 3",
        ),
        *(
            "bench --drafter none --tree 2",
            "bench extra",
            "demo extra",
            "models extra",
            "recipe nope",
            "recipe --path",
        ),
        *(
            "recipe configs/text/tree.yaml -- --x",
            "recipe text/train_mini.py --json -- --help",
            "recipe ../pyproject.toml",
            "recipe --copy .",
            "--version x",
        ),
    )
    for line in lines:
        yield line.split(), line != "--version x"
    yield ["text", ""], True
    yield ["image", " "], True
    yield ["speech", ""], True


def configs(folder: Path) -> Iterator[Case]:
    """Configs with wrong entries, from YAML and from --set."""
    entries = (
        "run.seeed=1",
        "runn.seed=1",
        "run.temperature=-1",
        "run.temperature=.nan",
        "run.temperature=hot",
        "run.top_p=2",
        "run.top_k=1.5",
    )
    entries += (
        "run.max_new_tokens=0",
        "run.max_new_tokens='5'",
        "run.seed=[1]",
        "target.dtype=float7",
        "target.device=3",
        "target.path=",
        "target=3",
    )
    entries += (
        "drafter.length=-1",
        "drafter.length=1.5",
        "drafter.length=1000000",
        "drafter.tree=oak",
        "drafter.tree=[0]",
        "drafter.tree=[1000,1000,1000]",
    )
    entries += (
        "drafter.kind=psychic",
        "drafter.kind=os:system",
        "drafter.kind=3",
        "drafter.options=3",
        "drafter.options={n: 1}",
        "drafter.kind=pools",
    )
    entries += (
        "accept.kind=os:system",
        "accept.kind=maybe",
        "accept.options={beta: 1}",
        "accept.kind=builtins:print",
        "accept.kind=subprocess:Popen",
        "run.seed={",
    )
    entries += (
        "drafter.kind=trained",
        "drafter.kind=datastore",
        "run=",
        "run.repetition_penalty=0",
        "run.top_k=true",
        ".=",
        "a.b.c=1",
        "run.max_new_tokens=.inf",
    )
    good = folder / "good.yaml"
    good.write_text("run: {max_new_tokens: 2}\n")
    for number, entry in enumerate(entries):
        yield ["text", "a", "--config", str(good), "--set", entry], entry != "run="
        section, _, rest = entry.partition(".")
        key, _, value = rest.partition("=")
        path = folder / f"entry-{number}.yaml"
        path.write_text(f"{section}:\n  {key}: {value}\n" if rest else entry.replace("=", ": "))
        yield ["text", "a", "--config", str(path)], rest not in ("",)
    for allowed in ("os:system", "subprocess:Popen", "builtins:dict", "nowhere:Rule", "os:nothing"):
        yield ["text", "a", "--config", str(good), "--allow-code", "--set", f"accept.kind={allowed}"], True
        yield ["text", "a", "--allow-code", "--drafter", allowed], True


ANY_TEXT = ("", " ", "nope", "[red]x[/nope]", "💥", "a\nb", "../..", "/proc/nothing", "-1", "nan", "9" * 5000, LONG, "[" * 5000, "{" * 5000)
ANY_INT = ("x", "", "1.5", "nan", "1e3", "-1", "0", "100000", "1000000", "999999999", "9" * 30, "9" * 5000, "-" + "9" * 30)
ANY_FLOAT = ("x", "", "nan", "inf", "-inf", "-1", "0", "1e999", "1e30", "1e-30", "9" * 5000)
NEVER = {int: ("x", "", "1.5", "nan", "1e3"), float: ("x", "", "nan"), str: (), bool: ("=3",)}
"""Type of an option -> values that no option of it takes."""


def small_lines(folder: Path) -> dict[str, list[str]]:
    """A small request of every command, which runs or is refused at its end."""
    good, picture, nowhere = str(folder / "good.txt"), str(folder / "picture.png"), "nowhere/at/all"
    events, items = str(folder / "events.parquet"), str(folder / "items.parquet")
    return {
        "text": ["Story:", "--max-new-tokens", "2"],
        "image": ["a large red star top left", "--out", "o.png"],
        "speech": ["two", "--max-seconds", "0.2", "--out", "o.wav"],
        "transcribe": [str(folder / "junk.wav"), "--model", nowhere],
        "caption": [picture, "--max-new-tokens", "2"],
        "recommend": ["--history", "12,873", "--k", "2"],
        "serve": ["--text", "mini", "--port", "70000"],  # a port that there is not: nothing is served
        "ui": ["--text", "mini", "--port", "70000"],
        "bench": ["--limit", "1", "--max-new-tokens", "2", "--repeats", "1", "--prompts", good],
        "check": ["--limit", "1", "--max-new-tokens", "2"],
        "explain": ["--limit", "1", "--max-new-tokens", "2", "--prompts", good, "--repeats", "1"],
        "plan": ["--target-ms", "30", "--draft-ms", "3", "--acceptance", "0.8"],
        "demo": ["--quick", "--out", f"{nowhere}.html"],
        "models": [],
        "recipe": [],
        "recommend prepare": [events, items, "shop", "--from", "events", "--core", "1", "--levels", "2", "--size", "4"],
        "recommend train": [str(folder / "shop"), "--steps", "1", "--drafter", "none"],
        "recommend evaluate": [str(folder / "shop"), "--users", "2"],
        "recommend assign": [str(folder / "shop"), items, "ids.parquet"],
        "recommend append": [str(folder / "shop"), items],
        "recommend index": [str(folder / "shop" / "catalogue.parquet"), "catalogue.safetensors"],
    }


SERVES = ("serve --port", "ui --port", "demo --out")
"""Options whose valid values start a server, or a minute of work: `wrong_options` has their wrong ones."""


LATER = "--device cuda:99"
LONG_WORK = {
    *(f"{name} {option}" for name in ("bench", "check", "explain") for option in ("--limit", "--repeats", "--max-new-tokens")),
    *(f"recommend train {option}" for option in ("--steps", "--hidden-size", "--layers", "--heads", "--rows", "--walks")),
}
"""Options whose large values are hours of work that someone may ask for: their lines end at a device that there is not."""


def options_of(command: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every parameter of a command with its type: int, float, str or bool."""
    for parameter in command.params:
        kind = parameter.type_descriptor.annotation
        yield parameter, get_args(kind)[0] if get_origin(kind) is list else kind


def generated(folder: Path) -> Iterator[Case]:
    """Every option and argument of every command with every value of its type that may go wrong; True where none takes the value."""
    files = [str(folder / name) for name in ("good.txt", "junk.bin", "deep.json", "deep.yaml", "deep", "loop", "picture.png", "huge.json")]
    values: dict[Any, tuple[str, ...]] = {int: ANY_INT, float: ANY_FLOAT, str: (*ANY_TEXT, *files, str(folder)), bool: ("=3",)}
    base = small_lines(folder)
    for name, found in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert name in base, f"mmspec {name} is not in small_lines: give a small request"
        for parameter, kind in options_of(found):
            option = parameter.opts[0]
            if f"{name} {option}" in SERVES:
                continue
            for value in values[kind]:
                if parameter.param_type_name == "argument":
                    rest = base[name][1:] if base[name] and not base[name][0].startswith("--") else base[name]
                    words = [value, *rest] if parameter is found.params[0] else [*base[name], value]
                else:
                    words = [*base[name], f"{option}{value}"] if kind is bool else [*base[name], option, value]
                words += LATER.split() if f"{name} {option}" in LONG_WORK else []
                yield [*name.split(), *words], value in NEVER[kind]


def make_files(folder: Path) -> Path:
    """Write broken files, and the few whole ones that requests need, into `folder`."""
    broken_files(folder)
    (folder / "lines.txt").write_text("two\n")
    Image.new("RGB", (32, 32)).save(folder / "picture.png")
    events = [(user, f"i{(user * 3 + place) % 7}", place) for user in range(6) for place in range(4)]
    pd.DataFrame(events, columns=["user", "item", "time"]).to_parquet(folder / "events.parquet")
    pd.DataFrame({"item": [f"i{number}" for number in range(7)]}).to_parquet(folder / "items.parquet")
    prepared = [str(folder / "shop") if word == "shop" else word for word in small_lines(folder)["recommend prepare"]]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(SystemExit):
        app(["recommend", "prepare", *prepared])
    assert (folder / "shop" / "catalogue.parquet").exists()
    return folder


def cases(folder: Path) -> Iterator[Case]:
    """The command lines."""
    yield from contradictions(folder)
    yield from configs(folder)
    yield from single(folder)
    yield from combined(folder, 60)
    yield from generated(folder)


def run(folder: Path, share: float = 1.0, only: str = "") -> Report:
    """Run the lines that begin with `only`, or a `share` of them drawn with a fixed seed; `folder` is for files."""
    report, random, place, here = Report(), Random(1), folder / "files", folder / "here"
    place.mkdir()
    make_files(place)
    with bounded_memory(), patch.object(minis, "load", cache(minis.load)), patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True):
        for args, wrong in cases(place):
            if random.random() < share and " ".join(args).startswith(only):
                here.mkdir()
                with chdir(here):
                    report.add(
                        *outcome_of_command(args, here, wrong),
                        " ".join(arg if len(arg) < 60 else f"{arg[:20]}...{arg[-25:]}" for arg in args),
                    )
                shutil.rmtree(here)
    return report


if __name__ == "__main__":
    main("command lines", run)
