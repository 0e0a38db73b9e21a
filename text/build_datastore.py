"""Build a datastore for retrieval drafting (REST) from text files: a suffix array on disk that `--drafter FILE.npy` reads.

    python text/build_datastore.py corpus/*.txt --out store.npy                          # the mini's tokenizer
    python text/build_datastore.py corpus/*.jsonl --out store.npy --tokenizer ./big      # JSON lines with "text"
    mmspec text "Once upon a time" --drafter store.npy --temperature 0.8

Text files hold one text each, or several apart by lines that say ---. The tokenizer must be the target's. About 8 bytes a token
on disk; building holds the whole array in memory, some 50 bytes a token.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mmspec
from mmspec.drafters.retrieval.datastore import Datastore
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track


def texts(paths: list[Path]) -> Iterator[str]:
    """Every text of every file, empty ones left out."""
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"text file {path} does not exist")
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            if ".jsonl" in path.suffixes:
                found = [json.loads(line)["text"] for line in file if line.strip()]
            else:
                found = file.read().split("\n---\n")
        yield from (text for text in found if text.strip())


def tokenizer_of(name: str) -> Any:
    if name == "mini":
        return mmspec.load("text").processor
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def run(paths: list[Path], out: Path, name: str) -> tuple[int, int]:
    """(texts, tokens) in the datastore that now stands at `out`."""
    if out.suffix != ".npy":
        raise ValueError(f"--out is {out}: a datastore's name ends in .npy")
    tokenizer = tokenizer_of(name)
    found = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in track(list(texts(paths)), "texts")]
    if not found:
        raise ValueError("the files hold no text: give at least one that does")
    store = Datastore.build(found, out)
    return len(found), len(store.tokens)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("paths", type=Path, nargs="*", help="*.txt or *.jsonl, also gzipped")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tokenizer", default="mini", help="the shipped mini's, a folder or a hub name")
    parser.add_argument("--smoke", action="store_true", help="two made-up texts, and a few tokens drafted from them")
    args = parser.parse_args()
    try:
        if args.smoke:
            smoke()
            return
        if not args.paths or args.out is None:
            parser.error("give text files and --out FILE.npy, or --smoke")
        count, tokens = run(args.paths, args.out, args.tokenizer)
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error))
    print(f"{count} texts, {tokens:,} tokens, {args.out.stat().st_size / 1e6:.1f} MB: {args.out}")


def smoke() -> None:
    """Build a small one and draft from it."""
    from mmspec.loading.text import load_pair
    from mmspec.run.config import Config, DrafterSection, RunSection

    with TemporaryDirectory() as folder:
        source, out = Path(folder, "corpus.txt"), Path(folder, "store.npy")
        source.write_text("Once upon a time there was a bird.\n---\nThe bird was very happy. " * 20, encoding="utf-8")
        count, tokens = run([source], out, "mini")
        config = Config(drafter=DrafterSection(kind="datastore", path=str(out), length=6), run=RunSection(max_new_tokens=12))
        pair = load_pair(config)
        stats = pair.generate(pair.inputs(["The bird was very"])).stats
    print(f"{count} texts, {tokens:,} tokens; drafted {stats.drafted}, accepted {stats.accepted}")


if __name__ == "__main__":
    run_recipe(main)
