"""The files and folders that shown command lines name, and what makes them small: a line then runs as it stands, in a folder of its own.

Names of a hub and of the home folder are paths here: `openai/whisper-base` is a folder of that name, with a model of random weights.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import mmspec
from mmspec import minis
from mmspec.commands import common
from mmspec.commands.services import serve
from mmspec.drafters.block.pard import KEY as MASK_TOKEN
from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.retrieval.datastore import Datastore
from mmspec.loading import model_drafter
from mmspec.loading import text as pairs
from mmspec.loading.transformers import load_model
from mmspec.minis.drawn import scenes
from mmspec.recsys.semantic_ids import RqVae
from mmspec.run.config import changed
from mmspec.serving.http import server
from mmspec.speech.sound.audio import save
from mmspec.utils.files import write_json
from mmspec.vision.checkpoints.latents import save_model
from mmspec.vision.continuous.state_draft import StateDraft
from tests import shipped_mtp, small_clips, small_gguf, small_seers
from tests.bench.test_plan import explained
from tests.docs.pages import ROOT
from tests.recsys import shops
from tests.speech import small_whisper
from tests.vision import small_checkpoints, small_latents, small_minis

TOKENS = 16
"""The most new tokens of a text that is not judged."""
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
PROMPTS = ("Once upon a time there was a dog.", "Question: Tom has 2 pens and gets 3. How many pens?\nAnswer:")


# --- makers: each writes what stands for a name to a path ------------------------------------------------------------------


def _text(part: str) -> Callable[[Path], None]:
    """Mini text's target or drafter with its tokenizer, as a folder of somebody's own."""

    def make(place: Path) -> None:
        mini = mmspec.load("text")
        model = mini.target if part == "target" else mini.drafters[part]
        model.save_pretrained(place)
        mini.processor.save_pretrained(place)
        write_json(place / "tokenizer_config.json", json.loads((place / "tokenizer_config.json").read_text()) | {"chat_template": CHAT})

    return make


def _masked(place: Path) -> None:
    """A drafter that fills in mask tokens."""
    _text("model")(place)
    write_json(place / "config.json", json.loads((place / "config.json").read_text()) | {MASK_TOKEN: 3})


def _modules(place: Path) -> None:
    """A target whose checkpoint has a multi-token prediction module."""
    shutil.copytree(shipped_mtp.folder_of("Qwen3.5", place.parent), place)
    words = {"<unk>": 0, **{f"word{number}": number for number in range(1, 60)}}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "<unk>")), unk_token="<unk>", pad_token="<unk>").save_pretrained(
        place
    )


def _whisper(width: int) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        small_whisper.whisper(width=width).save_pretrained(place)
        small_whisper.processor().save_pretrained(place)

    return make


def _sounds(place: Path) -> None:
    place.mkdir()
    for name, wave in zip(("a.wav", "b.flac"), small_whisper.sounds(0.8, 0.5), strict=True):
        save(place / name, wave, small_whisper.RATE)


def _seer(name: str) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        home = place.parent / f"{place.name}-seers"
        small_seers.save_all(home)
        shutil.copytree(home / name, place)

    return make


def _reds(place: Path) -> None:
    """A picture with one red circle, which an example counts, and two other shapes."""
    shown = (("red", "circle", "top left", 16, 16), ("blue", "star", "top right", 48, 16), ("green", "square", "bottom left", 16, 48))
    things = [scenes.Thing(colour, shape, "large", where, x, y, 12.0) for colour, shape, where, x, y in shown]
    scenes.draw_scene(scenes.Scene(tuple(things), "light")).save(place)


def _table(kind: str, folder: bool = False) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        if folder:
            place.mkdir()
        pq.write_table(_TABLES[kind](), place / "0.parquet" if folder else place)

    return make


def _users() -> pa.Table:
    histories = [list(history) for history in mmspec.load("recsys").examples[:4]]
    items = [int(item) for item in mmspec.load("recsys").catalogue.items[:40]]
    columns = {"seen": [histories[0][:1]] * 4, "in_region": [items] * 4, "bought": [items[:1]] * 4}
    return pa.table({"user_id": list(range(4)), "history": histories, **columns})


def _prompts() -> pa.Table:
    return pa.table({"user_id": [0, 1], "prompt": ["tent lamp", "rope"], "bought": pa.array([[100], None], pa.list_(pa.int64()))})


def _shop_users() -> pa.Table:
    return pa.table({"user_id": [1, 2], "history": [[100, 101], [110, 111, 112]]})


def _events(user: str = "user", time: str = "time") -> pa.Table:
    rows = [(f"u{user}", (user + step) % 30, 10 * user + step) for user in range(40) for step in range(8)]
    users, items, times = zip(*rows, strict=True)
    return pa.table({user: users, "item": items, time: times})


def _items(first: int = 0, count: int = 30) -> pa.Table:
    vectors = np.random.default_rng(1).normal(size=(first + count, 8))[first:]
    titles = [f"steel part {number % 7} of kind {number % 4}" for number in range(first, first + count)]
    codes = [[number // 8, number % 8] for number in range(first, first + count)]
    return pa.table(
        {"item": list(range(first, first + count)), "title": titles, "embedding": [row.tolist() for row in vectors], "codes": codes}
    )


_TABLES: dict[str, Callable[[], pa.Table]] = {
    "users": _users,
    "prompts": _prompts,
    "shop users": _shop_users,
    "interactions": _events,
    "bought": lambda: _events("customer", "bought_at"),
    "ordered": lambda: _events(time="order"),
    "items": lambda: _items().drop(["codes"]),
    "beauty items": lambda: _items().drop(["embedding"]),
    "new items": lambda: _items(first=30, count=3).drop(["codes"]),
}


def _prepared(place: Path) -> None:
    """What `mmspec recommend prepare` leaves."""
    for name, kind in (("interactions", "interactions"), ("items", "items")):
        _table(kind)(place.parent / f"{place.name}-{name}.parquet")
    tables = [str(place.parent / f"{place.name}-{name}.parquet") for name in ("interactions", "items")]
    assert command(["recommend", "prepare", *tables, str(place), "--core", "1", "--size", "8", "--levels", "2"]) == 0


def _shop(place: Path) -> None:
    """What `mmspec recommend prepare` and `train` leave."""
    _prepared(place)
    assert command(["recommend", "train", str(place), *_options(["recommend", "train"])]) == 0


def _words(place: Path) -> None:
    """A recommender whose tokenizer lies beside it."""
    from tests.recsys.test_prompts import home

    shutil.copytree(home.__wrapped__(_Folders(place.parent / f"{place.name}-parts")) / "target", place)


class _Folders:
    def __init__(self, place: Path):
        self.place = place

    def mktemp(self, name: str) -> Path:
        (self.place / name).mkdir(parents=True)
        return self.place / name


def _part_of_shop(name: str) -> Callable[[Path], None]:
    def make(place: Path) -> None:
        home = place.parent / f"{place.name}-shop"
        home.mkdir()
        (shutil.copytree if name != "catalogue.parquet" else shutil.copy)(shops.write(home) / name, place)

    return make


def _published(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """What a maker of tests.vision.small_checkpoints leaves in a folder, under another name."""

    def to(place: Path) -> None:
        home = place.parent / f"{place.name}-made"
        home.mkdir()
        found = make(home)
        shutil.move(found, place)

    return to


def _latents(place: Path) -> None:
    """A model of continuous tokens, `deep`, with a state draft, where `vision/train_continuous.py` leaves them."""
    small_latents.folder(place, ("diffusion",), drafts=False).joinpath("diffusion").rename(place / "deep")
    target = small_latents.model("diffusion")
    save_model(StateDraft.beside(target, False, head_width=16).eval(), place / "deep" / "drafters" / "state")


def _lines(*lines: str) -> Callable[[Path], None]:
    return lambda place: _write(place, "\n".join(lines) + "\n")


def _write(place: Path, text: str) -> None:
    place.write_text(text, encoding="utf-8")


def _model_module(place: Path) -> None:
    _write(place, "import mmspec\n\ndef target():\n    return mmspec.load('text').target\n\ndef drafter():\n    return 'lookup'\n")


PLACES: tuple[tuple[str, str, Callable[[Path], Any]], ...] = (
    # command, name, maker: the first row that fits
    ("transcribe", r"PATH|.*whisper-(base|large-v3)", _whisper(32)),
    ("text", r".*whisper-.*", _whisper(32)),
    ("text --audio", r"FOLDER", _whisper(32)),
    ("serve", r".*whisper-.*", _whisper(32)),
    ("transcribe", r".*whisper-tiny(\.en)?", _whisper(16)),
    ("transcribe", r"build/heads/latent", lambda place: save_drafter(new_net("latent", small_whisper.whisper(width=32)), place)),
    ("transcribe or text", r".*\.(flac|wav|ogg)", lambda place: save(place, *small_whisper.sounds(0.8), small_whisper.RATE)),
    ("transcribe", r"recordings", _sounds),
    ("check --picture cat.jpg or check --picture questions", r"PATH|sees", _seer("chatty")),
    ("check --picture cat.jpg", r"small", _seer("reader")),
    ("check --picture clip.mp4 or caption", r"PATH|Qwen/Qwen2\.5-VL-.*", lambda place: _clips("qwen2.5", place)),
    ("caption", r"Qwen/Qwen3-VL-8B-Instruct", lambda place: _clips("qwen3", place)),
    ("caption", r"google/paligemma-3b-mix-224", _seer("seer")),
    ("caption", r"picture\.png", _reds),
    ("caption or check or image", r".*\.(png|jpg)", lambda place: Image.new("RGB", (48, 32), "red").save(place)),
    ("caption", r"photos", small_seers.drawn),
    ("caption", r"clips", lambda place: (place.mkdir(), small_clips.film(place / "a.mp4"))),
    ("caption or check", r".*\.mp4", small_clips.film),
    ("recommend", r"users\.parquet", _table("users")),
    ("recommend users/ out/ --model ./target", r"users", _table("shop users", folder=True)),
    ("recommend", r"users", _table("users", folder=True)),
    ("recommend", r"prompts\.parquet", _table("prompts")),
    ("recommend", r"my-llm", _words),
    ("recommend", r"target|small", lambda place: _part_of_shop({"small": "drafter"}.get(place.name, place.name))(place)),
    ("recommend", r"catalogue\.parquet", _part_of_shop("catalogue.parquet")),
    ("recommend", r"in-stock\.txt", lambda place: _write(place, "\n".join(str(i) for i in mmspec.load("recsys").catalogue.items[:60]))),
    ("recommend prepare", r"events", _table("bought", folder=True)),
    ("recommend prepare", r"data/amazon-industrial/interactions\.parquet", _table("ordered")),
    ("recommend prepare", r"(.*/)?interactions\.parquet", _table("interactions")),
    ("recommend prepare", r"build/beauty/items\.parquet", _table("beauty items")),
    ("recommend users/ out/ --model ./target", r"items\.parquet", lambda place: shops.catalogue().write(place)),
    ("recommend prepare", r"(.*/)?items\.parquet", _table("items")),
    ("recommend", r"new-items\.parquet", _table("new items")),
    ("recommend train", r"(build/beauty/)?shop", _prepared),
    ("recommend (train|evaluate|append|assign|index|run) or serve or ui", r"(build/beauty/)?shop", _shop),
    ("image or check", r"janus", _published(small_checkpoints.janus)),
    ("image", r"c2i_B_256\.pt", _published(lambda home: small_checkpoints.llamagen(home, "c2i_B_256.pt", 16, 1000)[0])),
    ("image", r"vq_ds16_c2i\.pt", _published(lambda home: small_checkpoints.llamagen(home)[1])),
    ("image", r"GLM-Image", _published(small_checkpoints.glm_image)),
    ("image", r"anole(-small)?", _published(lambda home: small_checkpoints.chameleon(home)[0])),
    ("image", r"vqgan\.ckpt", _published(lambda home: small_checkpoints.chameleon(home)[1])),
    ("image", r"my-model", lambda place: small_minis.scenes(place)),
    ("image", r"OUT", _latents),
    ("check", r"captions\.txt", _lines("a red shoe", "low")),
    ("check", r"my_models\.py", _model_module),
    ("text --drafter mtp", r"PATH", _modules),
    ("text", r"PARD-FOLDER", _masked),
    ("text", r"gemma\.gguf", lambda place: small_gguf.write(place, small_gguf.model())),
    (
        "speech",
        r"lines\.(txt|jsonl)",
        lambda place: _write(place, '{"text": "three five"}\n' if place.suffix == ".jsonl" else "three five\n"),
    ),
    ("speech", r"tree\.json", lambda place: shutil.copy(ROOT / "mmspec" / "minis" / "speech" / "tree.json", place)),
    ("text", r"(FOLDER/)?tree\.json", lambda place: write_json(place, [[0], [1], [0, 0]])),
    ("text The capital", r"FOLDER", _text("target")),
    ("text", r"store\.npy", lambda place: Datastore.build([[*range(3, 200)]], place)),
    ("bench", r"docs/real-models\.md", lambda place: shutil.copy(ROOT / "docs" / "real-models.md", place)),
    ("plan", r"why\.json", lambda place: explained(place.parent)),
    (".*", r"prompts\.txt|questions\.txt|FILE", _lines(*PROMPTS[:1])),
    (".*", r"folder|eagle3|FOLDER", lambda place: shutil.copytree(ROOT / "mmspec" / "minis" / "text" / "drafters" / "eagle3", place)),
    (".*", r"small|Qwen/Qwen3-0\.6B|.*/models/.*small.*", _text("model")),
    (".*", r"PATH|PATH_4BIT|big|big-4bit|MODEL|FOLDER|Qwen/Qwen3-8B|.*/models/gemma-3-270m", _text("target")),
)
"""What stands for a name on a command line: the commands that name it and the name, as patterns, and what writes it."""


def _clips(name: str, place: Path) -> None:
    small_clips.save(name, place.parent / f"{place.name}-made")
    shutil.move(place.parent / f"{place.name}-made" / name, place)


# --- runs -----------------------------------------------------------------------------------------------------------------

SMALLER = {
    "image": {"grid": 4},
    "recommend prepare": {"core": 1, "size": 8, "levels": 2},
    "recommend train": {"steps": 3, "rows": 8, "drafter-steps": 2, "drafter-users": 8, "held": 8, "hidden-size": 16, "layers": 1},
    "recommend evaluate": {"sasrec-steps": 2, "held": 8, "users": 8},
}
"""Command -> the most that its options may ask for here. Options that a line does not give are added to steps of `recommend`."""
BEGINNINGS = (
    ("mmspec.bench.compare.run", "run_trials"),
    ("mmspec.bench.suites.real", "measure"),
    ("mmspec.bench.suites.whisper", "measure"),
    ("mmspec.bench.suites.gpu", "measure"),
    ("mmspec.bench.explain.explanation", "explain_pair"),
    ("mmspec.bench.check.verify", "verify"),
    ("mmspec.bench.suites.engine", "measure"),
    *(("mmspec.bench.check.modalities", f"check_{kind}") for kind in ("pictures", "continuous", "speech", "recommendations")),
    ("mmspec.bench.demo.run", "run_demo"),
)
"""Where long work begins: options are checked and models and prompts are loaded by then. tests/bench has what the work does."""


class Begun(BaseException):
    """Raised where long work would begin."""


OPTION = re.compile(r"--[a-z][a-z-]*")


def name_of(words: Sequence[str]) -> str:
    """The command that a line runs: one word, or two of a step."""
    from tests.docs.examples import COMMANDS

    return " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]


def _options(words: Sequence[str]) -> list[str]:
    """`words` with the options of `SMALLER` in place of larger ones, on a CPU, in this process."""
    words, name = list(words), name_of(words)
    for option, most in SMALLER.get(name, {}).items():
        place = words.index(f"--{option}") if f"--{option}" in words else None
        if place is None:
            if name.startswith("recommend") and not _unread(option, words):
                words += [f"--{option}", str(most)]
        elif int(words[place + 1]) > most:
            words[place + 1] = str(most)
    for option, value in (("--device", "cpu"), ("--engine", "local"), ("--size", "128x96")):  # the size: of pictures, in pixels
        if option in words and (option != "--size" or name == "image") and name != "serve":
            words[words.index(option) + 1] = value
    return words[len(name.split()) :]


def _unread(option: str, words: Sequence[str]) -> bool:
    """Whether a line leaves nothing for an option to say."""
    line = " ".join(words)
    return (option.startswith("drafter") and "--drafter none" in line) or (option in ("sasrec-steps", "held") and "--baselines" in words)


def command(words: Sequence[str]) -> int | str | None:
    """Run a command line in this process and return its exit code."""
    from mmspec.cli import app

    try:
        app(list(words))
    except SystemExit as stopped:
        return stopped.code
    return 0


def run(words: Sequence[str], judged: bool = False) -> int | str | None:
    """Run a shown line, made small, and return its exit code. `Begun` where its long work would begin."""
    name = name_of(words)
    smaller = [*name.split(), *_options(words)]
    with patch.object(common, "config_of", _short(common.config_of)) if not judged else ExitStack():
        return command(smaller)


def _short(config_of: Callable[..., Any]) -> Callable[..., Any]:
    def short(given: dict[str, Any]) -> Any:
        config = config_of(given)
        return changed(config, "run", max_new_tokens=min(TOKENS, config.run.max_new_tokens))

    return short


@contextmanager
def world(home: Path) -> Iterator[Callable[[Path, Sequence[str]], None]]:
    """Inside, commands find stand-ins for what their lines name. The value puts them into a folder, where the line then runs.

    Args:
        home: an empty folder for what is made once.
    """
    made: dict[tuple[str, str], Path] = {}

    def put(folder: Path, words: Sequence[str]) -> None:
        line = " ".join([name_of(words), *words[len(name_of(words).split()) :]])
        names = [re.sub(r"^~", str(home / "user"), word).removeprefix("./").rstrip("/") for word in words[1:] if not OPTION.fullmatch(word)]
        names = [part for name in names for part in re.split(r"[,=:](?=[^,=:])", name)] + ["my_models.py"] * ("--target" in words)
        names += [name.partition("/")[0] for name in names if "/" in name]
        for name in names:
            for commands, pattern, make in PLACES:
                if not any(_fits(each, line) for each in commands.split(" or ")) or not re.fullmatch(pattern, name):
                    continue
                if (commands, name) not in made:
                    made[commands, name] = home / str(len(made)) / Path(name).name
                    made[commands, name].parent.mkdir(parents=True)
                    make(made[commands, name])
                place = folder / name
                if not place.exists():  # a folder within one that is there
                    place.parent.mkdir(parents=True, exist_ok=True)
                    copied = place.name in ("shop", "FOLDER") or "shop" in name  # commands write into it
                    (shutil.copytree if copied and made[commands, name].is_dir() else os.symlink)(made[commands, name], place)
                break

    loaded = cache(load_model)

    def load_once(name: str, *args: Any, **options: Any) -> Any:
        return loaded(os.path.realpath(name) if os.path.exists(name) else name, *args, **options)

    with ExitStack() as stack:
        for owner, attribute, value in (
            (pairs, "load_model", load_once),
            (model_drafter, "load_model", load_once),
            (minis, "_loaded", cache(minis._loaded)),
            (RqVae, "trained", partial(RqVae.trained, steps=20)),
            (serve, "_serve_replicas", lambda given, names, options, tell: tell("replicas")),
            (server, "serve_app", lambda app, bound, options: None),
        ):
            stack.enter_context(patch.object(owner, attribute, value))
        for module, attribute in BEGINNINGS:
            real = getattr(import_module(module), attribute)
            stack.enter_context(patch.object(import_module(module), attribute, _begin(real)))
        stack.enter_context(patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True))
        stack.enter_context(patch.dict(os.environ, HOME=str(home / "user"), MMSPEC_DRAFT_RECORDS="0"))
        yield put


def _begin(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def begin(*args: Any, **options: Any) -> Any:
        signature(real).bind(*args, **options)
        raise Begun

    return begin


def _fits(command: str, line: str) -> bool:
    """Whether a line runs `command` ("check", "recommend (train|run)") with the options that it names ("check --picture cat.jpg")."""
    name, *options = re.split(r" (?=--)", command)
    return re.match(rf"(?:{name})(?: |$)", line) is not None and all(option in line for option in options)
