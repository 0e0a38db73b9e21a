"""Applies two tables to a checkout: mmspec/utils/moved_modules.txt (old module -> new module) and moved_names.txt (old name -> new name).

Run from the root of a checkout of the layout before decision 014: python docs/decisions/014-layout/apply.py [modules|names]
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

HERE = Path(__file__).resolve().parents[3] / "mmspec" / "utils"
PUBLIC = {"mmspec.text.speculate"}  # a function of the same name as its module
WIDTH = 140


def table(name: str) -> list[tuple[str, str]]:
    """(old, new) lines of a table."""
    lines = [line.split("#")[0].strip() for line in (HERE / name).read_text(encoding="utf-8").splitlines()]
    return [(old.strip(), new.strip()) for old, _, new in (line.partition("->") for line in lines if line)]


def tracked(*patterns: str) -> list[Path]:
    """Files of the checkout that git knows."""
    found = subprocess.run(["git", "ls-files", *patterns], capture_output=True, text=True, check=True).stdout.split("\n")
    return [Path(name) for name in found if name and Path(name).is_file() and "014-layout" not in name]


class Modules:
    """Where every module and every moved definition stands now."""

    def __init__(self):
        lines = table("moved_modules.txt")
        self.modules = {old: new for old, new in lines if ":" not in old}
        for old, new in list(self.modules.items()):  # packages move with all that is in them
            folder = Path(*old.split("."))
            if folder.is_dir():
                for file in folder.rglob("*.py"):
                    inner = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
                    self.modules.setdefault(inner, new + inner.removeprefix(old))
        self.names: dict[str, dict[str, str]] = {}
        for old, new in lines:
            if ":" in old:
                module, _, names = old.partition(":")
                self.names.setdefault(module, {}).update({name.strip(): new for name in names.split(",")})
        dotted = sorted(set(self.modules), key=len, reverse=True)
        self.dotted = re.compile(r"\b(" + "|".join(map(re.escape, dotted)) + r")\b(?:([.:])(\w+))?")
        self.short = re.compile(r"(?<![\w./`])(`?)((?:core|drafters)\.\w+)(?:\.(\w+))?")
        paths = sorted((old.replace(".", "/") for old in self.modules), key=len, reverse=True)
        self.paths = re.compile(r"(?<![\w/])(mmspec/)?(" + "|".join(re.escape(path.removeprefix("mmspec/")) for path in paths) + r")\.py\b")

    def of(self, module: str, name: str | None = None) -> str:
        new = self.names.get(module, {}).get(name or "")
        return new or self.modules.get(module, module)

    def dotted_name(self, found: re.Match) -> str:
        module, mark, name = found[1], found[2], found[3]
        if module in PUBLIC and mark != ".":
            return found[0]
        inner = f"{module}.{name}"
        if mark == "." and inner in self.modules:
            return self.of(inner)
        return self.of(module, name) + (f"{mark}{name}" if name else "")

    def short_name(self, found: re.Match) -> str:
        module = f"mmspec.{found[2]}"
        if module not in self.modules:
            return found[0]
        new = self.of(module, found[3]).removeprefix("mmspec.")
        return found[1] + new + (f".{found[3]}" if found[3] else "")

    def path(self, found: re.Match) -> str:
        new = self.of("mmspec." + found[2].replace("/", "."))
        return (found[1] or "") + new.replace(".", "/").removeprefix("mmspec/") + ".py"

    def text(self, text: str) -> str:
        return self.paths.sub(self.path, self.dotted.sub(self.dotted_name, text))

    def imports(self, node: ast.ImportFrom) -> list[str]:
        """The statements that take the place of `from module import names`."""
        groups: dict[str, list[str]] = {}
        for alias in node.names:
            name, shown = alias.name, f" as {alias.asname}" if alias.asname else ""
            inner = f"{node.module}.{name}"
            if inner in self.modules:
                home, _, last = self.modules[inner].rpartition(".")
                shown = shown or (f" as {name}" if last != name else "")
                groups.setdefault(home, []).append(last + shown)
            else:
                groups.setdefault(self.of(node.module or "", name), []).append(name + shown)
        return [f"from {module} import {', '.join(names)}" for module, names in groups.items()]

    def python(self, text: str) -> str:
        """A Python file, its imports and the names of modules in its strings and comments rewritten."""
        lines, kept = text.split("\n"), []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mmspec") and node.level == 0:
                kept.append(node)
        held: list[list[str]] = []
        for node in sorted(kept, key=lambda node: -node.lineno):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            before, after = lines[first][: node.col_offset], lines[last - 1][node.end_col_offset :]
            new = [before + line for line in self.imports(node)]
            new[-1] += after
            held.append(new)
            lines[first:last] = [f"\0{len(held) - 1}\0"]
        text = self.text("\n".join(lines))
        return re.sub("\0(\\d+)\0", lambda found: "\n".join(held[int(found[1])]), text)


def wrapped(text: str) -> str:
    """A Python file whose docstring and comment lines are at most `WIDTH` wide: what is over goes to the front of the next line."""
    lines, index = text.split("\n"), 0
    inside = {line for first, last in _docstrings(text) for line in range(first, last)}
    while index < len(lines):
        line = lines[index]
        body = line.lstrip()
        if len(line) > WIDTH and (index in inside or body.startswith("#")):
            indent = line[: len(line) - len(body)]
            mark = "# " if body.startswith("#") else ""
            cut = line.rfind(" ", 0, WIDTH + 1)
            lines[index], rest = line[:cut].rstrip(), line[cut + 1 :]
            following = lines[index + 1] if index + 1 < len(lines) else ""
            same = index + 1 in inside or (bool(mark) and following.startswith(indent + "#"))
            flows = same and following.strip() not in ("", '"""') and not following.lstrip().startswith(("- ", "* ", ">>>", "|"))
            deeper = following[: len(following) - len(following.lstrip())]
            if flows and len(deeper) >= len(indent) and not re.match(r"\s*[\w, *`]+: ", following):
                lines[index + 1] = deeper + mark + rest + " " + following.lstrip().removeprefix(mark)
            else:
                entry = re.match(r"\s*[\w, *`]+: ", line) and not line.lstrip().startswith('"""') and index in inside
                lines.insert(index + 1, indent + ("    " if entry else "") + mark + rest)
                inside = {number + (number > index) for number in inside} | {index + 1}
        index += 1
    return "\n".join(lines)


def _docstrings(text: str) -> list[tuple[int, int]]:
    """(first, last) line numbers, from 0, of every docstring."""
    return [
        (node.lineno - 1, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def tidy() -> None:
    """Imports sorted, unused ones dropped, long comments wrapped, code formatted."""
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run(["git", "add", "-A", "mmspec", "tests", "docs"], check=True)
    subprocess.run([*ruff, "check", "--fix", "-q", "--select", "F401,I", "."], check=False)
    subprocess.run([*ruff, "format", "-q", "."], check=True)
    for file in tracked("*.py"):
        text = file.read_text(encoding="utf-8")
        if max(map(len, text.split("\n"))) > WIDTH:
            file.write_text(wrapped(text), encoding="utf-8")


def docstrings(text: str, rewrite) -> str:
    """`rewrite` applied to the short names of modules in comments and docstrings."""
    lines = text.split("\n")
    for first, last in _docstrings(text):
        for index in range(first, last):
            lines[index] = rewrite(lines[index])
    for index, line in enumerate(lines):
        if "#" in line:
            code, mark, comment = line.partition("  # ")
            lines[index] = code + mark + rewrite(comment) if mark else (rewrite(line) if line.lstrip().startswith("#") else line)
    return "\n".join(lines)


def move_modules() -> None:
    """Move files, take definitions out of modules, rewrite imports and mentions."""
    modules = Modules()
    for file in tracked("*.py", "*.md", "*.toml", "*.yaml", "*.yml", "*.ipynb", "*.txt", "*.cfg"):
        if "minis" in file.parts and file.suffix != ".py":
            continue
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            new = modules.python(docstrings(text, lambda line: modules.short.sub(modules.short_name, line)))
        else:
            new = modules.short.sub(modules.short_name, modules.text(text)) if file.suffix == ".md" else modules.text(text)
        if new != text:
            file.write_text(new, encoding="utf-8")
    staged = [(Path(*old.split(".")), Path(*new.split("."))) for old, new in modules.modules.items()]
    moved = []
    for old, new in staged:  # through a name of its own: a package may take the name of a module
        source = old.with_suffix(".py")
        if source.is_file():
            held = source.with_name(f"moving-{source.name}")
            subprocess.run(["git", "mv", str(source), str(held)], check=True)
            moved.append((held, new.with_suffix(".py")))
        elif (old / "__init__.py").is_file():
            moved.append((old / "__init__.py", new / "__init__.py"))
    for held, target in moved:
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", str(held), str(target)], check=True)
        for folder in target.parents:
            if folder == Path("mmspec") or folder == Path("."):
                break
            if not (folder / "__init__.py").exists():
                (folder / "__init__.py").write_text("", encoding="utf-8")
    for old, names in modules.names.items():
        split(Path(*modules.of(old).split(".")).with_suffix(".py"), names)


def split(source: Path, names: dict[str, str]) -> None:
    """Take the definitions `names` out of `source`, each to its module; unused imports are left to ruff."""
    text = source.read_text(encoding="utf-8")
    lines, tree = text.split("\n"), ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    head = ["\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in imports]
    here = ".".join(source.with_suffix("").parts)
    spans: dict[str, list[tuple[int, int]]] = {}
    defined: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            defined[node.name] = names.get(node.name, here)
            if node.name in names:
                first = min([node.lineno, *(item.lineno for item in node.decorator_list)]) - 1
                while first and lines[first - 1].startswith("#"):
                    first -= 1
                spans.setdefault(names[node.name], []).append((first, node.end_lineno or first))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    defined[one.id] = here
    used = re.compile(r"\b(" + "|".join(map(re.escape, defined)) + r")\b")
    gone = set()
    for home, places in spans.items():
        body = "\n\n\n".join("\n".join(lines[first:last]) for first, last in places)
        needed = {name for name in used.findall(body) if defined[name] != home}
        wanted = [f"from {defined[name]} import {name}" for name in sorted(needed)]
        first = body.find('"""')
        title = body[first + 3 : body.find('"""', first + 3)].strip().split("\n")[0] if first >= 0 else ""
        path = Path(*home.split(".")).with_suffix(".py")
        path.write_text(f'"""{title}"""\n\n' + "\n".join([*head, *wanted]) + "\n\n\n" + body + "\n", encoding="utf-8")
        subprocess.run(["git", "add", str(path)], check=True)
        gone |= {index for begin, end in places for index in range(begin, end)}
    rest = "\n".join(line for index, line in enumerate(lines) if index not in gone)
    back = {name for name in used.findall(rest) if defined[name] != here}
    if back:
        last = max(node.end_lineno or 0 for node in imports)
        kept = [line for index, line in enumerate(lines[:last]) if index not in gone]
        tail = [line for index, line in enumerate(lines) if index >= last and index not in gone]
        rest = "\n".join([*kept, *(f"from {defined[name]} import {name}" for name in sorted(back)), *tail])
    source.write_text(rest, encoding="utf-8")


class Names:
    """Old names of identifiers and words, and the new ones."""

    def __init__(self):
        self.parts, self.names, self.words = {}, {}, {}
        self.scoped: dict[str, dict[str, str]] = {}
        for old, new in table("moved_names.txt"):
            kind, _, word = old.partition(" ")
            if word:
                {"part": self.parts, "name": self.names, "word": self.words}[kind][word] = new
            else:
                module, _, name = old.partition(":")
                self.scoped.setdefault(module, {})[name] = new
        camel = {old.title(): "".join(piece.title() for piece in new.split("_")) for old, new in self.parts.items()}
        self.camel = {old: new for old, new in camel.items() if old in ("Law", "Laws", "Guess", "Guesses", "Settled")}
        self.in_camel = re.compile("(" + "|".join(sorted(self.camel, key=len, reverse=True)) + ")(?![a-z])")
        plain = [word for word in self.words if "-" not in word]
        self.prose = re.compile(r"\blaw-exact\b|(?<![\w`/.-])(" + "|".join(sorted(plain, key=len, reverse=True)) + r")(?![\w`(=]|\.\w)")
        self.ids = re.compile(r"[A-Za-z_]\w*")

    def identifier(self, name: str, own: dict[str, str]) -> str:
        """What an identifier is called now; `own` are the scoped names of its file."""
        if name in own:
            return own[name]
        if name in self.names:
            return self.names[name]
        if name.isupper():
            return "_".join(self.parts.get(part.lower(), part).upper() if part.lower() in self.parts else part for part in name.split("_"))
        if "_" in name or name.islower():
            return "_".join(self.parts.get(part, part) for part in name.split("_")) if name != "_" else name
        return self.in_camel.sub(lambda found: self.camel[found[1]], name)

    def code(self, text: str, own: dict[str, str]) -> str:
        return self.ids.sub(lambda found: self.identifier(found[0], own), text)

    def sentence(self, text: str, own: dict[str, str]) -> str:
        """Comments, docstrings and pages: code between backticks, words outside."""
        pieces = re.split(r"(``[^`]*``|`[^`\n]*`)", text)
        for index, piece in enumerate(pieces):
            if index % 2:
                pieces[index] = self.code(piece, own)
            else:
                for verb, new in VERBS:
                    piece = verb.sub(new, piece)
                piece = self.prose.sub(lambda found: self.words[found[0]], piece)
                pieces[index] = self.marked(own).sub(lambda found: self.identifier(found[0], own), piece)
        return "".join(pieces)

    def marked(self, own: dict[str, str]) -> re.Pattern:
        """Words of a sentence that can only be identifiers."""
        names = [name for name in (*self.names, *own) if name not in ENGLISH]
        return re.compile(r"\b\w+_\w+\b|\b(?:" + "|".join(map(re.escape, names)) + r")\b")

    def string(self, text: str, own: dict[str, str]) -> str:
        """A string literal: a lone identifier, or a sentence, whose fields are code in f-strings."""
        found = re.match(r"([A-Za-z]*)('''|\"\"\"|'|\")", text)
        assert found
        prefix, quote = found[1].lower(), found[2]
        body = text[found.end() : len(text) - len(quote)]
        if re.fullmatch(r"\w+", body):
            new = self.identifier(body, own)
            return text[: found.end()] + (body if body in ENGLISH and body.islower() else new) + quote
        if re.fullmatch(r"\w+(\[[\w, ]+\])?( \| \w+)+|\w+\[[\w, |]+\]", body):  # an annotation
            return text[: found.end()] + self.code(body, own) + quote
        if "f" in prefix:
            pieces = re.split(r"(\{\{|\}\}|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})", body)
            body = "".join(self.code(p, own) if p.startswith("{") and p != "{{" else self.sentence(p, own) for p in pieces)
        else:
            body = self.sentence(body, own)
        return text[: found.end()] + body + quote

    def python(self, path: Path, text: str) -> str:
        own = dict(self.scoped.get(".".join(path.with_suffix("").parts), {}))
        aliases: dict[str, dict[str, str]] = {}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    home = self.scoped.get(node.module, {})
                    if alias.name in home:
                        own[alias.name] = home[alias.name]
                    elif node.module in FRONTS and alias.name in FRONTS[node.module]:
                        own[alias.name] = FRONTS[node.module][alias.name]
                    inner = self.scoped.get(f"{node.module}.{alias.name}")
                    if inner:
                        aliases[alias.asname or alias.name] = inner
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname and alias.name in self.scoped:
                        aliases[alias.asname] = self.scoped[alias.name]
        out, before = [], ""
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        lines = text.splitlines(keepends=True)
        at, outside = (1, 0), False
        for index, token in enumerate(tokens):
            if token.type in (tokenize.ENDMARKER, tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.NL):
                continue
            out.append(between(lines, at, token.start))
            at = token.end
            if token.type == tokenize.OP and token.string == "." and index and tokens[index - 1].string in aliases:
                before = tokens[index - 1].string
                out.append(token.string)
                continue
            if token.type == tokenize.NAME:
                if token.string in ("from", "import"):  # the names of modules between them stay
                    outside = token.string == "from" and token.line.lstrip().startswith("from")
                new = aliases[before].get(token.string) if before else None
                called = index and tokens[index - 1].string == "."
                mine = {} if called else own
                out.append(new or (token.string if outside else self.identifier(token.string, mine)))
            elif token.type == tokenize.STRING:
                out.append(self.string(token.string, own))
            elif token.type == tokenize.COMMENT:
                out.append(self.sentence(token.string, own))
            else:
                out.append(token.string)
            before = ""
        out.append(between(lines, at, (len(lines) + 1, 0)))
        return "".join(out)


OBJECT = r"(?= (?:a|an|the|one|what|how|nothing|its|their|every|for|on|at|as|next|from|in|by|with|behind|ahead|codes|again|less)\b)"
VERBS = (
    (re.compile(r"(?<=\bto )guess\b|(?<=\bmay )guess\b|(?<=\bcan )guess\b|(?<=\bthat )guess\b|(?<=\bnever )guess\b"), "draft"),
    (re.compile(r"(?<=loop: )guess\b|(?<=engine: )guess\b|\bguess(?= (?:a tree|what|how|for|on a|from)\b)"), "draft"),
    (re.compile(r"(?<=\bthat )guesses" + OBJECT + r"|(?<=\bit )guesses\b|(?<=\bdrafter )guesses\b|(?<=\bnothing )guesses\b"), "drafts"),
)
"""Where "guess" is a verb."""

ENGLISH = {
    *("room", "limits", "stopping", "kernel", "kernels", "halves", "sight", "law", "guess"),
    *("Law", "Room", "Limits", "Left", "Judge", "Kernel", "Guess", "Settled", "Unchecked", "Lessons", "Sight", "Sense", "Climb", "Memo"),
    *("Ends", "Books", "Begun", "Ahead", "Side", "Lane", "Lines", "Lesson", "Level", "Window", "Asked", "Caption", "Pictures", "Way"),
    *("Search", "Mode", "Draft", "Found", "Row", "Run", "Request", "Writer", "Plan", "Guided", "Projection", "Block", "Jacobi", "Drawn"),
    *("Feed", "Fed", "Heard", "Frames", "Seen", "Sampling", "Spread", "Independent", "Ensemble", "Confidence", "Source", "Denoised"),
    *("Tally", "Mixture", "Recorded", "Rounds", "Judged", "Round", "Clip", "Stream", "Totals", "Looked", "Twins", "Foreseen", "Relay"),
    *("Cascade", "Ending"),
}
"""Names that are words of English: outside of code they stay."""

FRONTS = {
    "mmspec.recsys": {"NGram": "ItemNGram", "MODES": "METHODS"},
    "mmspec.speech": {"Stream": "SpeechStream"},
}
"""Names as package fronts show them."""


def between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    """The text from (row, column) `start` to `end`, rows from 1."""
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]] if start[0] <= len(lines) else ""
    middle = lines[start[0] : end[0] - 1]
    last = lines[end[0] - 1][: end[1]] if end[0] <= len(lines) else ""
    return lines[start[0] - 1][start[1] :] + "".join(middle) + last


def rename() -> None:
    """New names and words in every file."""
    names = Names()
    for file in tracked("*.py", "*.md", "*.ipynb"):
        if ("minis" in file.parts and file.suffix != ".py") or file.name in ("CHANGELOG.md", "compiler.py"):
            continue
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            new = names.python(file, text)
        else:
            pieces = re.split(r"(```.*?```)", text, flags=re.S)
            new = "".join(names.code(p, {}) if i % 2 else names.sentence(p, {}) for i, p in enumerate(pieces))
        if new != text:
            file.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    steps = sys.argv[1:] or ["modules", "names"]
    if "modules" in steps:
        move_modules()
        tidy()
    if "names" in steps:
        rename()
        tidy()
