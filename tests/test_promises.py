"""A documented FileNotFoundError is raised: every public function that promises one is called with a path where nothing is."""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.commands import ROOT

CALLS: dict[str, Callable[[Any, Path], Any]] = {
    "mmspec.commands.transcribe.sounds_in": lambda call, nowhere: call([str(nowhere)]),
    "mmspec.minis.load_vision": lambda call, nowhere: call(nowhere, "scenes"),
    "mmspec.minis.load_continuous": lambda call, nowhere: call(nowhere, "diffusion"),
    "mmspec.minis.items.load_items": lambda call, nowhere: call(nowhere),
    "mmspec.loading.transformers.load_model": lambda call, nowhere: call(str(nowhere), "float32", "cpu"),
    "mmspec.loading.vision_training.published_target": lambda call, nowhere: call(published(nowhere)),
    "mmspec.recsys.histories.beauty": lambda call, nowhere: call(nowhere, "tiger-cf", 2, 0),
    "mmspec.speech.sound.audio.read_sound": lambda call, nowhere: call(nowhere, 16_000),
    "mmspec.speech.recognition.transcribe.transcribe": lambda call, nowhere: call(*recogniser(), [str(nowhere)]),
    "mmspec.vision.drop_in.pipeline.ImagePipeline.from_pretrained": lambda call, nowhere: call(str(nowhere)),
}
"""How functions are called that take more than a path."""
ELSEWHERE = {
    "mmspec.minis.speech_data.speak": "where espeak-ng is not installed",
    "mmspec.serving.http.loading.load_served": "by the loaders that it calls",
    "mmspec.serving.ui.models.load_ui_models": "by the loaders that it calls",
    "mmspec.serving.replicas.deployment.Replica": "by the loaders that it calls",
    "mmspec.utils.recipe_files.recipes_root": "of an installation without recipes: tests/test_packaging.py",
}


def published(nowhere: Path) -> Any:
    return SimpleNamespace(model=str(nowhere), decoder=None, device="cpu", dtype="float32", negative=None, image_size=None, captions=None)


def recogniser() -> tuple[Any, Any]:
    from tests.speech import small_whisper

    return small_whisper.whisper(), small_whisper.processor()


def promising() -> Iterator[str]:
    """Dotted names of the public functions and methods whose docstrings speak of FileNotFoundError."""
    for path in sorted((ROOT / "mmspec").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        todo = [(module, node) for node in ast.parse(path.read_text(encoding="utf-8")).body]
        while todo:
            prefix, node = todo.pop()
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                name = f"{prefix}.{node.name}"
                if "FileNotFoundError" in (ast.get_docstring(node) or ""):
                    yield name
                todo += [(name, part) for part in node.body if isinstance(node, ast.ClassDef)]


PROMISING = sorted(promising())


def found(name: str) -> Any:
    """The function of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(found(module), attribute)


@pytest.mark.parametrize("name", [name for name in PROMISING if name not in ELSEWHERE])
def test_a_promised_error_is_raised_in_one_line(name, tmp_path):
    call, nowhere = found(name), tmp_path / "nowhere"
    if name in CALLS:
        with pytest.raises(FileNotFoundError) as caught:
            CALLS[name](call, nowhere)
    else:
        first = next(iter(inspect.signature(call).parameters.values()))
        with pytest.raises(FileNotFoundError) as caught:
            call(str(nowhere) if first.annotation is str else nowhere)
    assert "nowhere" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_tables_name_functions_that_promise():
    assert {*CALLS, *ELSEWHERE} <= set(PROMISING)
    assert len(PROMISING) > 30
