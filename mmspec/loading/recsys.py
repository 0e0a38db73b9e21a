"""Recommenders by name: the shipped mini, a folder written by the training recipe, a transformers checkpoint. `trust_remote_code` is
off.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmspec import minis
from mmspec.models.checkpoint_loading import CONFIG, contents_of, loaded
from mmspec.recsys.catalogue import Catalogue
from mmspec.recsys.ngram import ItemNGram
from mmspec.recsys.preparation.mapped_folder import CATALOGUE, MAPPED, read_catalogue
from mmspec.recsys.retriever import Retriever
from mmspec.utils.files import is_path
from mmspec.utils.names import shown

MINIS = {"mini": "recsys", "recsys": "recsys", "recsys-deep": "recsys-deep"}
"""Names of minis, and what `mmspec.load` calls them."""
DTYPES = ("float32", "bfloat16", "float16", "auto")


@dataclass(frozen=True)
class Recommender:
    """A target with its catalogue and drafter, ready for `mmspec.recsys.recommend`."""

    name: str
    model: Any
    catalogue: Catalogue
    drafter: Any = None  # as `recommend` takes it
    drafter_name: str = "none"

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return self.model.device


def load_recommender(
    name: str = "mini",
    catalogue: str | Path | None = None,
    drafter: str | None = None,
    dtype: str = "float32",
    device: torch.device | str = "cpu",
) -> Recommender:
    """The recommender called `name`.

    Args:
        name: "mini", "recsys" or "recsys-deep"; a folder that `recsys/train_target.py` wrote; a folder or hub name of a transformers model,
            decoder-only or encoder-decoder.
        catalogue: its file; by default the mini's, or catalogue.parquet in the model's folder.
        drafter: "model" or another name for one the mini or the folder brings; a drafter's own folder or hub name; a file of item
            counts (*.safetensors); "none". By default "model" where there is one, else none.
        dtype: float32, bfloat16, float16 or auto, what the weights are stored in.

    Raises:
        ValueError, FileNotFoundError: in one line, for what cannot be had.
    """
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {shown(dtype)}; valid: {', '.join(DTYPES)}")
    home = Path(name).expanduser()
    if name in MINIS:
        return _mini(name, catalogue, drafter, dtype, device)
    _check(name, home)
    whole = (home / "target").is_dir()
    items = _catalogue(name, home, catalogue)
    model = _checkpoint(f"model {name}", home / "target" if whole else _place(name), dtype, device)
    if drafter is None:
        drafter = "model" if whole and (home / "drafter").is_dir() else "none"
    found = None if drafter == "none" else _drafter(_named(drafter, home), model, items, dtype, device)
    return Recommender(name, model, items, found, drafter)


def items_of(text: str, catalogue: Catalogue, name: str) -> list[Any]:
    """Parse items that were typed, separated by commas.

    Args:
        text: the items; whole numbers for a catalogue of numbers.
        catalogue: the items that there are.
        name: the option or field, for messages.

    Returns:
        The items; that they are in the catalogue is not checked.

    Raises:
        ValueError: for what is no whole number, where the catalogue's items are.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if isinstance(catalogue.items[0], int):
        for part in parts:
            if not part.removeprefix("-").isdecimal():
                raise ValueError(f"{name} has {part!r}: this catalogue's items are whole numbers, such as {catalogue.items[0]}")
        return [int(part) for part in parts]
    return parts


def _mini(name: str, catalogue: str | Path | None, drafter: str | None, dtype: str, device: torch.device | str) -> Recommender:
    given = None if catalogue is None else Catalogue.read(catalogue)
    mini = minis.load(MINIS[name])
    items = mini.catalogue if given is None else given
    kind = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    model, drafter = mini.target.to(device, kind), "model" if drafter is None else drafter
    found = None
    if drafter in mini.drafters:
        found = mini.drafters[drafter]
        found = found.to(device, kind) if isinstance(found, torch.nn.Module) else found
    elif drafter != "none":
        if not Path(drafter).expanduser().exists() and "/" not in drafter:
            raise ValueError(f"unknown drafter {drafter!r}; valid: none, {', '.join(mini.drafters)}, a drafter's folder or hub name")
        _check(drafter, Path(drafter).expanduser())
        found = _drafter(drafter, model, items, dtype, device)
    return Recommender(name, model, items, found, drafter)


def _check(name: str, home: Path) -> None:
    if not home.exists() and is_path(name):
        raise FileNotFoundError(f"model path {name} does not exist: give mini, a folder with config.json and weights, or a hub name")


def _catalogue(name: str, home: Path, given: str | Path | None) -> Catalogue:
    if given is not None:
        return Catalogue.read(given)
    if (home / CATALOGUE).exists() or (home / MAPPED).exists():
        return read_catalogue(home)
    raise ValueError(f"no catalogue: {name} has no {CATALOGUE}; give the file with the model's items and their paths")


def _named(drafter: str, home: Path) -> str:
    """Where the drafter called `drafter` is: what a folder of training brings goes by short names."""
    own = {"model": home / "drafter"} | {path.stem: path for path in sorted((home / "drafters").glob("*"))}
    if drafter in own:
        if not own[drafter].exists():
            raise ValueError(f"drafter 'model' is the one in the model's own folder, and {home} has none: give a drafter's folder")
        return str(own[drafter])
    _check(drafter, Path(drafter).expanduser())
    return drafter


def _drafter(name: str, model: Any, catalogue: Catalogue, dtype: str, device: torch.device | str) -> Any:
    """A small model, a net that reads the target's states, or item counts, as `recommend` takes them."""
    from mmspec.drafters.checkpoints.load import is_drafter, load_drafter

    if name.endswith(".safetensors"):
        return _counts(name, catalogue)
    if not is_drafter(name):
        return _checkpoint(f"drafter {name}", _place(name), dtype, device)
    net = load_drafter(name, model)
    if not hasattr(net, "beam_guide"):
        raise ValueError(f"drafter {name} is a {type(net).__name__}, which cannot draft beams: give a small model, or a head for items")
    return net


def _counts(name: str, catalogue: Catalogue) -> Any:
    """The retriever or n-gram in a file."""
    for kind in (Retriever, ItemNGram):
        try:
            return kind.load(name, catalogue)
        except ValueError as error:
            if f"holds no {kind.kind}" not in str(error):
                raise
    raise ValueError(f"drafter {name} holds no item counts: give a file that Retriever.save or ItemNGram.save wrote")


def _place(name: str) -> str:
    home = Path(name).expanduser()
    return str(home) if home.exists() else name


def _checkpoint(what: str, where: str | Path, dtype: str, device: torch.device | str) -> Any:
    import transformers as hf

    try:
        with contents_of(CONFIG):
            config = hf.AutoConfig.from_pretrained(where, trust_remote_code=False)
        kind = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
        model: Any = loaded(kind, where, dtype=dtype, trust_remote_code=False)
        return model.to(device).eval()
    except (OSError, ValueError, RecursionError, KeyError) as error:
        lines = str(error).strip().splitlines()
        raise ValueError(f"{what} cannot be loaded: {lines[0] if lines else type(error).__name__}") from None
