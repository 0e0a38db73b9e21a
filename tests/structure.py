"""Facts of structure: imports between folders, circles, arrows against the order of the rooms, and sizes.

    python -m tests.structure

A package's `__init__.py` that re-exports its own modules counts as the front of that package, not as a member of its folder.
"""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import networkx as nx  # a dependency of torch

ROOT = Path(__file__).parents[1]
ROOMS = (
    ("utils",),
    ("core",),
    ("models",),
    ("drafters",),
    ("run",),
    ("text", "vision", "speech", "recsys"),
    ("train",),
    ("minis",),
    ("loading",),
    ("serving",),
    ("jobs",),
    ("bench",),
    ("commands",),
    ("cli",),
)
"""From low to high: a room imports from rooms below it and from itself; rooms of one line do not import each other."""
_EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def modules() -> dict[str, Path]:
    """Every module of the package by dotted name."""
    found = {}
    for path in sorted((ROOT / "mmspec").rglob("*.py")):
        found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports, at any depth of its code; those for type checkers only are left out."""
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found


def is_front(path: Path) -> bool:
    """True for the `__init__.py` of a package with modules of its own."""
    return path.name == "__init__.py"


def folder(name: str, path: Path) -> str:
    """The folder a module belongs to; a package's front is a folder of its own."""
    return f"{name} (front)" if is_front(path) else name.rpartition(".")[0]


def room(name: str) -> int:
    """The rank of a module's room. The package's own front is above all."""
    parts = name.split(".")
    for rank, line in enumerate(ROOMS):
        if len(parts) > 1 and parts[1] in line:
            return rank
    return len(ROOMS)


def arrows() -> dict[tuple[str, str], set[tuple[str, str]]]:
    """(from folder, to folder) -> (from module, to module), between different folders."""
    known, found = modules(), defaultdict(set)
    for name, path in known.items():
        for other in imports(path, known):
            pair = folder(name, path), folder(other, known[other])
            if pair[0] != pair[1]:
                found[pair].add((name, other))
    return found


def upward() -> list[tuple[str, str]]:
    """Imports of a module in a room above, or beside, the importing one."""
    known = modules()
    found = []
    for name, path in known.items():
        for other in imports(path, known):
            mine, theirs = name.split(".")[1:2], other.split(".")[1:2]
            if other != "mmspec" and mine != theirs and room(other) >= room(name):
                found.append((name, other))
    return sorted(found)


def circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of folders, or of modules, that import each other."""
    groups = nx.strongly_connected_components(nx.DiGraph(list(edges)))
    return sorted(sorted(group) for group in groups if len(group) > 1)


def module_arrows() -> set[tuple[str, str]]:
    """(module, module that it imports)."""
    known = modules()
    return {(name, other) for name, path in known.items() for other in imports(path, known) if other != name}


def kinds_of_lines() -> tuple[int, int]:
    """Lines of code, and of docstrings; comments and blank lines are neither."""
    code = docs = 0
    for path in modules().values():
        text = path.read_text(encoding="utf-8")
        inner = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        quoted = {line for node in inner if isinstance(node.value.value, str) for line in range(node.lineno, node.end_lineno + 1)}
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        used = {line for token in tokens if token.type not in _EMPTY for line in range(token.start[0], token.end[0] + 1)}
        code, docs = code + len(used - quoted), docs + len(quoted)
    return code, docs


def sizes() -> dict[str, list[int]]:
    """Lines of every module by folder, fronts left out."""
    found = defaultdict(list)
    for name, path in modules().items():
        if not is_front(path):
            found[name.rpartition(".")[0]].append(len(path.read_text(encoding="utf-8").splitlines()))
    return found


def main() -> int:
    found, count = sizes(), {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    for name in sorted(found):
        print(f"{name:42} {len(found[name]):3} modules {sum(found[name]):6} lines")
    edges = arrows()
    wrong, rings, inner = upward(), circles(edges), circles(module_arrows())
    print(f"{len(count)} modules, {sum(count.values())} lines, {len(found)} folders, {len(edges)} arrows between folders")
    print("{:,} lines of code, {:,} of docstrings".format(*kinds_of_lines()))
    print(f"circles of folders: {len(rings)}; of modules: {len(inner)} {inner or ''}".rstrip())
    for ring in rings:
        print("  " + " <-> ".join(ring))
        for (one, other), pairs in sorted(edges.items()):
            if one in ring and other in ring:
                print(f"    {one} -> {other}: " + "; ".join(f"{a} imports {b}" for a, b in sorted(pairs)[:3]))
    print(f"upward arrows: {len(wrong)}")
    for one, other in wrong:
        print(f"  {one} imports {other}")
    return int(bool(wrong or rings or inner))


if __name__ == "__main__":
    sys.exit(main())
