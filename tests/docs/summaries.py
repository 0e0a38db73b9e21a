"""Where the figures and claims of summaries come from: README, the start page, the FAQ and the page of choices."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from mmspec.run.registry import SOURCES
from tests.docs.pages import ROOT

RESULTS, REAL, CONTINUOUS, DRAFTERS_PAGE = "docs/results.md", "docs/real-models.md", "docs/continuous.md", "docs/drafters.md"
FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?: \(\d+(?:\.\d+)?-\d+(?:\.\d+)?\))?(?![\w.]*\d)")
_NO_FIGURE = re.compile(r"batch \d+|\d+ steps?|\d+ levels|\d+ items?|at \d+\b(?!\.)|`[^`]*`|\]\([^)]*\)|int8")


def text_of(page: str) -> str:
    """A page, with x for the sign of multiplication."""
    return (ROOT / page).read_text(encoding="utf-8").replace("\N{MULTIPLICATION SIGN}", "x")


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    match = re.search(rf"^(#+) {re.escape(heading)}\n", text := text_of(page), re.M)
    assert match, f"{page} has no heading {heading!r}"
    return re.split(rf"^#{{1,{len(match[1])}}} ", text[match.end() :], maxsplit=1, flags=re.M)[0]


@dataclass(frozen=True)
class Source:
    """Rows of a section's tables that begin with one of `starts`, or paragraphs and points of a list with it inside."""

    page: str
    heading: str
    starts: tuple[str, ...]

    def lines(self) -> list[str]:
        text = section(self.page, self.heading)
        prose = re.split(r"\n\n|\n(?=- )", re.sub(r"^\|.*\n", "", text, flags=re.M))
        found = []
        for start in self.starts:
            those = re.findall(rf"^{re.escape(start)}.*$", text, re.M) if start.startswith("|") else [p for p in prose if start in p]
            assert those, f"{self.page}, {self.heading}: nothing with {start!r}"
            found += those
        return [re.sub(r"\*\*", "", line) for line in found]


@dataclass(frozen=True)
class Row:
    """The sources of a summary's row. A figure in `derived` is computed from figures that stand there."""

    sources: Sequence[Source]
    derived: tuple[tuple[str, str], ...] = ()

    def missing(self, cells: str) -> list[str]:
        """The figures in `cells` that stand in no source, word for word."""
        lines = " ".join(line for source in self.sources for line in source.lines())
        known = {*FIGURE.findall(lines), *re.findall(r"\d+(?:\.\d+)?", lines), "1"}
        computed = set()
        for figure, formula in self.derived:
            assert set(re.findall(r"\d+\.\d+", formula)) <= known, f"{formula}: not in the source"
            places = len(figure.partition(".")[2])
            assert f"{eval(formula, {}):.{places}f}" == figure, f"{formula} is not {figure}"
            computed.add(figure)
        return [figure for figure in FIGURE.findall(_NO_FIGURE.sub("", cells)) if figure not in known | computed]


def _of(page: str, heading: str, *starts: str) -> Row:
    return Row([Source(page, heading, starts)])


PAIR, TREES, COUNTS, BEAMS, TOKENS = (
    "The shipped pair against transformers",
    "Drafters and trees",
    "Rules, in counts",
    "Item beams",
    "Continuous tokens",
)
GREEDY, SAMPLED = "Greedy, batch 1", "Temperature 0.7, top-p 0.9, batch 1"
CAPTIONS = "Images in, text out"
ROWS: dict[str, dict[str, Row]] = {
    "README.md": {
        "text of [a real model]": _of(REAL, GREEDY, "| mmspec plain | 1.00 | 1922"),
        "the same, prompt lookup": _of(REAL, GREEDY, "| mmspec lookup | 1.80"),
        "the same, temperature 0.7, top-p 0.9": _of(REAL, SAMPLED, "| mmspec lookup | 1.27"),
        "text, greedy, small model, chain": _of(RESULTS, PAIR, "| mmspec | 2.98"),
        "text, greedy, prompt lookup": _of(RESULTS, TREES, "| lookup | chain |"),
        "text, temperature 0.7": _of(RESULTS, PAIR, "| mmspec, chain |"),
        "text, greedy, small model, batch of 8": _of(RESULTS, PAIR, "Batch 8"),
        "images of 16x16 codes from captions": _of(RESULTS, "Images", "| jacobi | token-exact", "| jacobi | 1.62"),
        "images of 14x14 codes": _of(RESULTS, "Images", "| jacobi | 42.8", "| jacobi | 1.62"),
        "images of 16x16 codes, small model": _of(RESULTS, "Images", "| assisted-jacobi |"),
        "images of continuous tokens, heads": _of(CONTINUOUS, "Inside the chain", "| 64 | 1 | 2.95", "| 64 | 8 | 2.04", "| 64 | `chain`"),
        "images of continuous tokens, `path`": _of(RESULTS, TOKENS, "| diffusion | path, 2 draft tokens"),
        "diffusion pipeline": Row([Source(CONTINUOUS, "Measured", ("| **frozen** |", "| none | 100"))], (("4.8", "100 / 20.7"),)),
        "speech, Medusa heads": _of(RESULTS, "Speech", "| heads, 3 draft tokens |"),
        "speech, small model": _of(RESULTS, "Speech", "| model | 2.59"),
        "recognition by [Whisper base]": _of(REAL, "Recognisers", "| mmspec, tiny.en, cropped, int8"),
        "image captions": _of(RESULTS, CAPTIONS, "| vlm, own | 5.38", "| vlm, own | 5.45"),
        "recommendations, 10 items, no drafter": _of(RESULTS, BEAMS, "| plain, prompts shared |"),
        "recommendations, 10 items, small model": Row(
            [Source(RESULTS, BEAMS, ("| strict, `model` |", "| `model`, 0.48 M |", "| plain, prompts shared |"))],
            (("3.2", "4 / 1.24"), ("0.41", "1.92 / 4.72")),
        ),
    },
    "docs/start/choosing.md": {
        "the output copies": _of(RESULTS, TREES, "| lookup | chain"),
        "the output repeats": _of(RESULTS, TREES, "| suffix | chain"),
        "a small model of the same family exists": _of(RESULTS, TREES, "| model | chain"),
        "a trained EAGLE-3": _of(RESULTS, TREES, "| eagle3 | chain"),
        "nothing of the above": _of(RESULTS, TREES, "| recycling |"),
        "no drafter, deep target": _of(RESULTS, TREES, "| layer-skip | chain"),
        "answers of one kind": _of(DRAFTERS_PAGE, "Pools of earlier answers", "|"),
        "images of continuous tokens": _of(CONTINUOUS, "Inside the chain", "| 64 | 1 | 2.95", "| 64 | 8 | 2.04", "| 64 | `chain`"),
        "recommendations": _of(RESULTS, BEAMS, "| `model`, width 4K |", "| `recsys` looks ahead |", "| `recsys-deep` looks ahead |"),
    },
    "docs/start/assisted-generation.md": {
        "greedy, chain": _of(RESULTS, PAIR, "| transformers assisted | 2.98", "| mmspec | 2.98"),
        "greedy, comb": _of(RESULTS, PAIR, "| transformers assisted | 2.98", "| mmspec | 3.53"),
        "temperature 0.7, chain": _of(RESULTS, PAIR, "| transformers assisted | 2.61", "| mmspec, chain"),
        "temperature 0.7, comb": _of(RESULTS, PAIR, "| transformers assisted | 2.61", "| mmspec, comb"),
        "image captions": _of(RESULTS, CAPTIONS, "| transformers, assisted by vlm |", "| vlm, own |"),
        "the same with `capture=True`": _of(RESULTS, CAPTIONS, "| transformers, assisted by vlm |", "| vlm, own, captured |"),
    },
}
"""Page -> beginning of a row's first cell -> its sources. A row is of the longest beginning that fits."""


def table_rows(page: str) -> list[tuple[str, str]]:
    """First cell of every row of a page's tables, and the cells behind it."""
    found = []
    for line in re.findall(r"^\|(.*)\|$", text_of(page), re.M):
        cells = [cell.strip() for cell in line.split(" | ")]
        if not set(line) <= set("|- "):
            found.append((cells[0].strip("| "), " | ".join(cells[1:])))
    return found


def row_of(page: str, first: str) -> Row | None:
    fits = [start for start in ROWS[page] if first.startswith(start)]
    return ROWS[page][max(fits, key=len)] if fits else None


# --- claims -----------------------------------------------------------------------------------------------------------------


def families() -> str:
    """Architectures that are exact, by the sweep's table."""
    return re.search(r"^\| all \| \d+ \| (\d+) \|", text_of("docs/families.md"), re.M)[1]  # pyright: ignore[reportOptionalSubscript]


def rows_of_families(pattern: str) -> list[str]:
    """The outcomes of the model types that match."""
    return re.findall(rf"^\| (?:{pattern}) \| \w+ \| \w+ \| ([^|]+?) \|", text_of("docs/families.md"), re.M)


def stands(page: str, heading: str, *starts: str) -> Callable[[re.Match[str]], bool]:
    """A claim whose figures stand in a source."""
    source = Source(page, heading, starts)
    return lambda claim: not Row([source]).missing(" ".join(claim.groups()))


CLAIMS: tuple[tuple[str, str, Callable[[re.Match[str]], bool]], ...] = (
    # page, the claim with its figures as groups, whether they are so
    ("README.md", r"\[(\d+) architectures\]", lambda claim: claim[1] == families()),
    ("docs/start/faq.md", r"\[(\d+) architectures\]", lambda claim: claim[1] == families()),
    ("docs/families.md", r"Every architecture of transformers (\S+) that", lambda claim: claim[1] == version("transformers")),
    (
        "README.md",
        r"at best (0\.55) x its speed at batch 8",
        lambda claim: (
            not Row([Source(RESULTS, BEAMS, ("| strict, `head` |", "| plain, prompts shared |"))], (("0.55", "2.61 / 4.72"),)).missing(
                claim[1]
            )
        ),
    ),
    ("README.md", r"one user (\S+) x as\s+fast at 5 items and (\S+) x at 10", stands(RESULTS, BEAMS, "| `model`, width 4K |")),
    ("README.md", r"plain decoding \(at best (0\.81)\s+x\)", stands(RESULTS, TOKENS, "| diffusion | path, 2 draft tokens")),
    ("docs/recsys.md", r"(1\.65) times as fast as plain search at K 5 and (1\.34) times", stands(RESULTS, BEAMS, "| `model`, width 4K |")),
    ("docs/index.md", r"for a deep, narrow model: (1\.65) times", stands(RESULTS, BEAMS, "| `model`, width 4K |")),
    ("docs/index.md", r"Text with a small model: (2\.98)", stands(RESULTS, PAIR, "| mmspec | 2.98")),
    ("docs/index.md", r"codes without a drafter: (\S+)\s+and (\S+)\. Image", stands(RESULTS, "Images", "| jacobi |")),
    ("docs/index.md", r"captions: (5\.38)", stands(RESULTS, CAPTIONS, "| vlm, own | 5.38")),
    ("docs/index.md", r"Speech: (2\.60)", stands(RESULTS, "Speech", "| model | token-exact")),
    ("docs/start/faq.md", r"runs at (\S+) times plain `generate`", stands(RESULTS, PAIR, "Batch 8")),
    (
        "docs/start/choosing.md",
        r"committed (\S+) to (\S+) times the tokens of a chain",
        stands(RESULTS, TREES, "For the same drafter calls"),
    ),
    ("docs/start/choosing.md", r"`coupled` (\S+), `token` (\S+), `block` (\S+) tokens", stands(RESULTS, COUNTS, "| model |")),
    (
        "docs/start/faq.md",
        r"Models with a recurrent state in transformers' cache \(Mamba and hybrids\) run",
        lambda claim: set(rows_of_families(r"mamba2?|falcon_h1|granitemoehybrid|bamba|jamba|qwen3_next|zamba2?")) == {"exact"},
    ),
    ("docs/start/faq.md", r"RWKV and xLSTM, .*? are refused", lambda claim: set(rows_of_families("rwkv|xlstm")) <= {"refused", "not run"}),
    (
        "README.md",
        r"No second model is needed: (.*?) draft without one",
        lambda claim: set(re.findall(r'"([\w-]+)"', claim[1])) <= set(SOURCES),
    ),
)
