"""Docstring coverage of public names, read from the source: which have none, and which of the public API leave out a part.

    python -m tests.docstrings [ROOM ...]

A name is public without a leading underscore. A method is covered by the docstring of the method it overrides: of a base class, or of a
protocol whose method has the same name and the same parameters.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRONTS = ("mmspec", "mmspec.text", "mmspec.vision", "mmspec.speech", "mmspec.recsys", "mmspec.jobs", "mmspec.serving")
"""Packages whose `__all__` is public API."""
ENGINE = tuple(
    f"mmspec.core.{name}" for name in ("records", "decode", "noise", "control", "stats", "stopping", "accept_rule", "protocols", "result")
)
"""Modules whose public classes and functions are public API."""
ENGINE_FOLDERS = tuple(f"mmspec.core.{name}." for name in ("rules", "distributions", "draft_length"))
SECTIONS = r"(?m)^\s*(Args|Attributes|Returns|Yields|Raises):"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Name:
    """One public name.

    Attributes:
        module: dotted name of its module.
        name: "Class", "Class.method" or "function"; empty for the module itself.
        node: its syntax tree.
        owner: the class of a method.
    """

    module: str
    name: str
    node: ast.AST
    owner: ast.ClassDef | None = None

    @property
    def label(self) -> str:
        return f"{self.module}:{getattr(self.node, 'lineno', 1)} {self.name}".rstrip()


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every module of mmspec."""
    found = {}
    for path in sorted((ROOT / "mmspec").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def rooms() -> list[str]:
    """The packages and modules directly under mmspec; "mmspec" for its own front."""
    return sorted({_room(name) for name in trees()})


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _is_private(module: str) -> bool:
    return any(part.startswith("_") and part != "__main__" for part in module.split("."))


def names() -> Iterator[Name]:
    """Every public module, class, function and method."""
    for module, tree in trees().items():
        if _is_private(module):
            continue
        yield Name(module, "", tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                yield Name(module, node.name, node)
                if isinstance(node, ast.ClassDef):
                    yield from (Name(module, f"{node.name}.{method.name}", method, node) for method in _methods(node))


def _methods(owner: ast.ClassDef) -> list[Function]:
    """A class's public methods, properties included; not the setters of properties."""
    found = [node for node in owner.body if isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__call__")]
    return [node for node in found if not any(text.endswith((".setter", ".deleter")) for text in _decorators(node))]


def _decorators(node: Function | ast.ClassDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def _bases(owner: ast.ClassDef) -> list[str]:
    """Names of a class's bases, without their modules and parameters."""
    return [re.sub(r"\[.*", "", ast.unparse(base), flags=re.DOTALL).rpartition(".")[2] for base in owner.bases]


@cache
def _classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def _protocol_methods() -> set[tuple[str, tuple[str, ...]]]:
    """(name, parameters) of every documented method of a protocol."""
    protocols = [node for group in _classes().values() for node in group if "Protocol" in _bases(node)]
    return {
        (method.name, _parameters(method)) for node in protocols for method in node.body if isinstance(method, Function) and _doc(method)
    }


def _doc(node: ast.AST) -> str:
    return ast.get_docstring(node) or ""  # type: ignore[arg-type]


def _parameters(node: Function) -> tuple[str, ...]:
    """Parameters by name, without self and cls."""
    spec = node.args
    every = [
        *spec.posonlyargs,
        *spec.args,
        *([spec.vararg] if spec.vararg else []),
        *spec.kwonlyargs,
        *([spec.kwarg] if spec.kwarg else []),
    ]
    return tuple(parameter.arg for parameter in every if parameter.arg not in ("self", "cls"))


def _ancestors(owner: ast.ClassDef) -> list[ast.ClassDef]:
    found, waiting = [], _bases(owner)
    while waiting:
        for node in _classes().get(waiting.pop(), []):
            if node not in found and node is not owner:
                found.append(node)
                waiting += _bases(node)
    return found


def _inherits(name: Name) -> bool:
    """True for a method whose docstring is that of a base or a protocol."""
    if name.owner is None or not isinstance(name.node, Function):
        return False
    above = (method for base in _ancestors(name.owner) for method in base.body if isinstance(method, Function))
    if any(method.name == name.node.name and _doc(method) for method in above):
        return True
    return (name.node.name, _parameters(name.node)) in _protocol_methods()


def undocumented(room: str) -> list[str]:
    """Public names of a room without a docstring."""
    return [name.label for name in names() if _room(name.module) == room and not _doc(name.node) and not _inherits(name)]


# --- names ------------------------------------------------------------------------------------------------------------

SHARED_NAMES = {
    "check": "the command, and the check of a call's arguments",
    "explain": "the public call, and the command of that name",
    "generate": "the public calls of two modalities, and the engine's own that they end in",
    "load": "the public loaders, and the imports that commands put off",
    "load_drafter": "the public loader, and what it imports when it is called",
    "main": "entry points",
    "measure": "every suite's measurement",
    "method_of": "a method by its name, of each modality's own table",
    "recommend": "the public call, and the command of that name",
    "refuse": "both raise ValueError for arguments that do not apply",
    "render": "the HTML report, and every suite's table",
    "run": "the engine's driver, and the public call that runs a job",
    "section": "the demo's modules, one a modality, have the same three functions",
    "speculate": "the public calls of two modalities, for transformers' custom_generate",
    "there": "see section",
    "work": "see section",
    "transcribe": "the public call, and the command of that name",
}
"""Names that several modules may define, with the reason."""


def ambiguous() -> dict[str, list[str]]:
    """Public classes and functions that more than one module defines, by name."""
    found: dict[str, list[str]] = {}
    for name in names():
        if name.name and name.owner is None:
            found.setdefault(name.name, []).append(name.module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


# --- the public API ---------------------------------------------------------------------------------------------------


@cache
def public_api() -> frozenset[tuple[str, str]]:
    """(module, class or function) of the public API."""
    found = {_defined(front, name) for front in FRONTS for name in _exported(trees()[front])}
    mentioned = set(re.findall(r"\w+", (ROOT / "docs" / "drafters.md").read_text(encoding="utf-8")))
    for module, tree in trees().items():
        engine = module in ENGINE or module.startswith(ENGINE_FOLDERS)
        for node in tree.body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                drafter = module.startswith("mmspec.drafters.") and isinstance(node, ast.ClassDef) and node.name in mentioned
                if engine or drafter:
                    found.add((module, node.name))
    return frozenset(found)


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def _defined(module: str, name: str) -> tuple[str, str]:
    """The module that defines what `module` exports as `name`."""
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom) and node.module in trees():
            for alias in node.names:
                if (alias.asname or alias.name) == name and f"{node.module}.{alias.name}" not in trees():
                    return _defined(node.module, alias.name)
    return module, name


def incomplete(room: str) -> list[str]:
    """Names of a room's public API whose docstring leaves out a parameter, what is returned, or an exception."""
    found = []
    for name in names():
        if _room(name.module) == room and (name.module, name.name.partition(".")[0]) in public_api() and not _inherits(name):
            missing = _of_class(name) if isinstance(name.node, ast.ClassDef) else _of_function(name)
            found += [f"{name.label}: {part}" for part in missing]
    return found


def _section(doc: str, *titles: str) -> str | None:
    """The text of the first section with one of `titles`."""
    marks = list(re.finditer(SECTIONS, doc))
    for place, mark in enumerate(marks):
        if mark[1] in titles:
            return doc[mark.end() : marks[place + 1].start() if place + 1 < len(marks) else len(doc)]
    return None


def _entries(doc: str, *titles: str) -> dict[str, str]:
    """What a section says of each name: lines "name, other name: text" at the section's own indentation, with the lines below them."""
    lines = [line for line in (_section(doc, *titles) or "").splitlines() if line.strip()]
    depths = [len(line) - len(line.lstrip()) for line in lines]
    found: dict[str, str] = {}
    current: list[str] = []
    for line, depth in zip(lines, depths, strict=True):
        head, colon, text = line.strip().partition(":")
        if depth == min(depths) and colon and re.fullmatch(r"[\w, *]+", head):
            current = re.findall(r"\w+", head)
            found |= dict.fromkeys(current, text.strip())
        elif depth > min(depths):
            found |= {name: f"{found[name]} {line.strip()}" for name in current}
    return found


def _names_missing(doc: str, wanted: tuple[str, ...], *titles: str) -> list[str]:
    """Names without an entry, or with an empty one."""
    known = _entries(doc, *titles)
    return [each for each in wanted if not known.get(each)]


def _raised(node: ast.AST) -> set[str]:
    """Exception classes raised in a body; functions defined inside it are left out."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and child.exc is not None:
            target = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            kind = ast.unparse(target).rpartition(".")[2]
            found |= {kind} if kind[:1].isupper() else set()
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            found |= _raised(child)
    return found


def _is_tensor(annotation: ast.expr | None) -> bool:
    """True for `Tensor`, `Tensor | None` and the like; not for functions or collections of tensors."""
    if isinstance(annotation, ast.BinOp):
        return _is_tensor(annotation.left) or _is_tensor(annotation.right)
    return annotation is not None and ast.unparse(annotation) in ("Tensor", "torch.Tensor")


SHAPE = r"\[[^\]\n]*\]|\b(bool|float\w*|int\d*|LongTensor|BoolTensor|scalar|as `|See `|see `)"
"""What counts as a shape or a dtype in the entry of a tensor: "[B, S]", "bool", or a reference to where they are stated."""


def _without_shape(node: Function, doc: str) -> list[str]:
    """Tensor parameters and returned tensors whose entry names neither a shape nor a dtype."""
    known = _entries(doc, "Args", "Attributes")
    spec = node.args
    tensors = [one.arg for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if _is_tensor(one.annotation)]
    missing = [f"shape of {one}" for one in tensors if one in known and not re.search(SHAPE, known[one])]
    returned = _section(doc, "Returns")
    if _is_tensor(node.returns) and returned is not None and not re.search(SHAPE, returned):
        missing.append("shape of what is returned")
    return missing


def _of_function(name: Name) -> list[str]:
    node, doc = name.node, _doc(name.node)
    assert isinstance(node, Function)
    missing = [f"argument {each}" for each in _names_missing(doc, _parameters(node), "Args")]
    accessor = any(text.rpartition(".")[2] in ("property", "cached_property") for text in _decorators(node))
    silent = node.returns is None or ast.unparse(node.returns) in ("None", "NoReturn")
    if not accessor and not silent and _section(doc, "Returns", "Yields") is None:
        missing.append("Returns")
    missing += _without_shape(node, doc)
    return missing + [f"Raises {kind}" for kind in _names_missing(doc, tuple(sorted(_raised(node))), "Raises")]


def _of_class(name: Name) -> list[str]:
    node, doc = name.node, _doc(name.node)
    assert isinstance(node, ast.ClassDef)
    own = {method.name: method for method in node.body if isinstance(method, Function)}
    missing: list[str] = []
    if any("dataclass" in text for text in _decorators(node)):
        known = _entries(doc, "Args", "Attributes")
        missing += [f"field {field.target.id}" for field, text in _fields(name) if not (text or known.get(field.target.id))]
        tensors = [(field.target.id, text) for field, text in _fields(name) if _is_tensor(field.annotation)]
        missing += [f"shape of {field}" for field, text in tensors if not re.search(SHAPE, f"{text} {known.get(field, '')}")]
    elif "__init__" in own:
        documented = doc + "\n" + _doc(own["__init__"])
        missing += [f"argument {each}" for each in _names_missing(documented, _parameters(own["__init__"]), "Args", "Attributes")]
        missing += _without_shape(own["__init__"], documented)
    for start in ("__init__", "__post_init__"):
        if start in own:
            missing += [f"Raises {kind}" for kind in _names_missing(doc + _doc(own[start]), tuple(sorted(_raised(own[start]))), "Raises")]
    return missing


@cache
def _lines(module: str) -> list[str]:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8").splitlines()


def _fields(name: Name) -> list[tuple[ast.AnnAssign, str]]:
    """A dataclass's public fields, each with its trailing comment or the string below it; empty without one."""
    node, lines = name.node, _lines(name.module)
    assert isinstance(node, ast.ClassDef)
    found = []
    for place, field in enumerate(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or field.target.id.startswith("_"):
            continue
        if "ClassVar" in ast.unparse(field.annotation) or (field.value is not None and "init=False" in ast.unparse(field.value)):
            continue
        below = node.body[place + 1] if place + 1 < len(node.body) else None
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
        own = lines[field.lineno - 1 : field.end_lineno or field.lineno]
        comment = " ".join(line.partition("#")[2].strip() for line in own)
        found.append((field, below.value.value if is_text else comment.strip()))
    return found


def main() -> int:
    found = [line for room in sys.argv[1:] or rooms() for line in [*undocumented(room), *incomplete(room)]]
    print(*found, sep="\n")
    print(f"{len(found)} docstrings to write", file=sys.stderr)
    for name, modules in ambiguous().items():
        if name not in SHARED_NAMES:
            print(f"{name} is defined by {', '.join(modules)}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
