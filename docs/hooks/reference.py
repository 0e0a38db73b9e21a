"""MkDocs hook: writes the API reference from the package itself, a page for each folder of `mmspec` and a map of its modules.

The pages follow the folders, so a module that is added or moved needs no change here. A folder's page shows what its `__init__` exports
(`__all__`) and then each of its public modules.
"""

import ast
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mmspec"
FIRST = ("", "text", "vision", "speech", "recsys", "run", "core", "models", "drafters")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def summary(path: Path) -> str:
    """The first line of a module's docstring."""
    return (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]


def exports(path: Path) -> list[str]:
    """The names in a module's `__all__`, if it has one."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def homes(path: Path) -> dict[str, str]:
    """Exported name -> the module of its folder that holds it, of an `__init__` that imports on first use."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "_MODULES" for target in node.targets):
            return {str(name): str(where) for name, where in ast.literal_eval(node.value).items()}
    return {}


def folders() -> list[Path]:
    """Every package below `mmspec`, the public calls first."""
    found = [init.parent for init in PACKAGE.rglob("__init__.py")]
    public = [path for path in found if not any(part.startswith("_") for part in path.relative_to(PACKAGE).parts)]

    def order(path: Path) -> tuple:
        room = path.relative_to(PACKAGE).parts[0] if path != PACKAGE else ""
        return (FIRST.index(room) if room in FIRST else len(FIRST), path.as_posix())

    return sorted(public, key=order)


def modules(folder: Path) -> list[Path]:
    """The public modules that stand in a folder itself."""
    return sorted(path for path in folder.glob("*.py") if not path.stem.startswith("_"))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def address(folder: Path) -> str:
    return f"reference/{dotted(folder)}.md"


def page(folder: Path) -> str:
    """The page of one folder."""
    name, front, held = dotted(folder), exports(folder / "__init__.py"), homes(folder / "__init__.py")
    lines = [f"# {name}", "", summary(folder / "__init__.py"), ""]
    shown = [export for export in front if not (folder / export).is_dir()]
    if shown:
        lines += ["## Public names", ""]
        for export in sorted(shown, key=lambda export: (not export.islower(), export)):  # calls first, then classes and tables
            inside = f".{export}" if (folder / f"{export}.py").exists() else ""  # a call named as the module that holds it
            lines += [f"::: {name}.{export}{inside}", ""]
    for module in modules(folder):
        options = ["    options:", "      show_root_heading: false", "      show_root_toc_entry: false"]
        above = [export for export in shown if export == module.stem or held.get(export) == module.stem]
        if above:
            options += [f"      filters: {['!^_', *(f'!^{export}$' for export in above)]}"]
        lines += [f"## {module.stem}", "", f"::: {dotted(module)}", *options, ""]
    return "\n".join(lines)


def index() -> str:
    """The map: every folder and every public module with its first line."""
    opening = "After this page you can find the module that does a given thing. Each line is the module's own first line."
    lines = ["# API reference", "", opening, ""]
    for folder in folders():
        name = dotted(folder)
        lines += [f"## [{name}]({name}.md)", "", summary(folder / "__init__.py"), ""]
        rows = [f"| [`{module.stem}`]({name}.md#{module.stem}) | {summary(module)} |".replace("||", "| |") for module in modules(folder)]
        if rows:
            lines += ["| module | what it is |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def rooms() -> list[dict]:
    """The entries of the navigation: one for each room, which opens where the room has folders."""
    pages: dict[str, list[dict]] = {}
    for folder in folders():
        room = ".".join(dotted(folder).split(".")[:2])
        pages.setdefault(room, []).append({dotted(folder): address(folder)})
    return [{room: inside} if len(inside) > 1 else inside[0] for room, inside in pages.items()]


def on_config(config):
    inside = [{"Map of all modules": "reference/index.md"}, *rooms()]
    config.nav = [{"API reference": inside} if entry == {"API reference": "reference/index.md"} else entry for entry in config.nav]
    return config


def on_files(files, config):
    files.append(File.generated(config, "reference/index.md", content=index()))
    for folder in folders():
        files.append(File.generated(config, address(folder), content=page(folder)))
    return files
