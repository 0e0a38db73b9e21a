"""Modules, paths, names and arguments that the docs mention exist."""

import ast
import re
import warnings
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import CARDS, DECISIONS, GUIDES, ROOT, TOP, named

PAGES = [*TOP, *GUIDES, *DECISIONS, *CARDS]
_DOTTED = re.compile(r"(?<![\w/.@-])mmspec(?:\.[A-Za-z_]\w*)+(?!\w)")
_PATH = re.compile(
    r"(?<![\w/.-])((?:mmspec|core|models|drafters|run|tests|text|vision|speech|recsys|configs)/[\w/.-]+\.(?:py|yaml|txt|json))\b"
)
_CODE = re.compile(r"`([^`\n]+)`")
_ARGUMENT = re.compile(r"(?<![\w\"'./ -])([a-z_]\w*)=(?!=)|(?<=[(,] )([a-z_]\w*)=(?!=)")
ELSEWHERE = {
    *("assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "custom_generate", "do_sample", "num_beams", "use_cache"),
    *("padding_side", "device_map", "num_assistant_tokens", "assistant_confidence_threshold", "use_mtp", "num_return_sequences", "tp_plan"),
    *("target_tokenizer", "assistant_tokenizer", "force_unique_generate_call", "return_dict_in_generate"),
    *("prior_token_ids", "weights_only", "generation_mode", "use_norm"),
}
"""Arguments of transformers, diffusers and torch that the docs mention."""


def text_of(page) -> str:
    """A page; of the changes, those of the newest release only: older sections keep the names of their time."""
    text = page.read_text(encoding="utf-8")
    return "## ".join(text.split("\n## ")[:2]) if page.name == "CHANGELOG.md" else text


def resolve(dotted: str) -> None:
    """Import a dotted name. ImportError or AttributeError where it is nowhere, DeprecationWarning for a name of an earlier release."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=DeprecationWarning, message=".*mmspec")
        _resolve(dotted)


def _resolve(dotted: str) -> None:
    parts = dotted.split(".")
    for most in range(len(parts), 0, -1):
        name = ".".join(parts[:most])
        if not is_module(name):
            continue
        found = import_module(name)
        for part in parts[most:]:
            found = getattr(found, part)
        if isinstance(found, ModuleType) and not callable(found) and not is_module(found.__name__):
            raise ImportError(f"{dotted} has moved")
        return
    raise ImportError(dotted)


def is_module(name: str) -> bool:
    """True for a module of this checkout with a file, so not for one that stands in for a module of an earlier release."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None and ROOT in Path(spec.origin).parents


@cache
def arguments() -> frozenset[str]:
    """The arguments and fields that the package, its recipes and its tests define."""
    found = set()
    for folder in ("mmspec", "tests", "text", "vision", "speech", "recsys"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.arg):
                    found.add(node.arg)
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.add(node.target.id)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_dotted_names_resolve(page):
    for dotted in sorted(set(_DOTTED.findall(text_of(page)))):
        try:
            resolve(dotted)
        except (ImportError, AttributeError, DeprecationWarning) as error:
            raise AssertionError(f"{named(page)}: {dotted} is nowhere: {error}") from None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_paths_exist(page):
    for path in sorted(set(_PATH.findall(text_of(page)))):
        assert (ROOT / path).exists() or (ROOT / "mmspec" / path).exists() or (ROOT / "docs" / path).exists(), path


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "drop-in.md"], ids=named)
def test_arguments_in_the_text_exist(page):
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M)
    for code in _CODE.findall(text):
        for found in _ARGUMENT.findall(code):
            name = found[0] or found[1]
            assert name in arguments() | ELSEWHERE, f"{name}= in `{code}`"


@pytest.mark.parametrize(
    "name", ["mmspec.config", "mmspec.core.accept", "mmspec.core.accept.Greedy", "mmspec.speech.Stream", "mmspec.nothing"]
)
def test_names_of_the_release_before_do_not_pass(name):
    with pytest.raises((ImportError, AttributeError, DeprecationWarning)):
        resolve(name)
