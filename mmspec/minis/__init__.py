"""Small models that ship with mmspec, trained by the recipes in this repository; each has a card."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.utils.names import unknown
from mmspec.utils.renamed import old_names

HOME = Path(__file__).parent
NAMES = (
    "text",
    "vision",
    "vision-fashion",
    "continuous",
    "continuous-mixture",
    "continuous-masked",
    "speech",
    "vlm",
    "recsys",
    "recsys-deep",
)
"""vision: drawn scenes from captions; vision-fashion: Fashion-MNIST by class. Both are in one folder and share a card.

continuous: Fashion-MNIST as continuous tokens by a diffusion head; continuous-mixture and continuous-masked: the same by other models.

recsys: a recommender of 5 layers; recsys-deep: one of 48 narrow layers over the same items, whose searches drafts make faster on a CPU.
"""


def shipped_drafters(name: str = "text") -> tuple[str, ...]:
    """Return the names of the trained drafters that ship with a mini, besides its drafter model."""
    return tuple(sorted(path.parent.name for path in (HOME / name / "drafters").glob("*/config.json")))


@dataclass(frozen=True)
class Mini:
    """A mini: `target` is the `model` of the public call, `drafters` are its drafters by name, `examples` its inputs."""

    target: Any
    drafters: dict[str, Any]
    processor: Any
    examples: Any
    card: str
    catalogue: Any = None  # of recommenders: what they recommend


def load(name: str) -> Mini:
    """Return the mini called `name`. ValueError lists the names."""
    if not isinstance(name, str) or name not in NAMES:
        raise unknown("mini", name, NAMES)
    import torch

    with torch.random.fork_rng(devices=[]):  # networks are drawn before their weights are read
        return _loaded(name)


def _loaded(name: str) -> Mini:
    if name == "text":
        return load_text(HOME / "text")
    if name in ("recsys", "recsys-deep"):
        return load_recsys(HOME / name)
    if name == "speech":
        return load_speech(HOME / "speech")
    if name == "vlm":
        return load_vlm(HOME / "vlm")
    if name.startswith("continuous"):
        return load_continuous(HOME / "continuous", name.partition("-")[2] or "diffusion")
    return load_vision(HOME / "vision", "fashion" if name == "vision-fashion" else "scenes")


TEXT_CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ {'user': 'Question: ', 'assistant': 'Answer: '}.get(message['role'], '') }}"
    "{{ message['content'] }}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)
"""A chat in the form of the sums that mini text was trained on: the chat template that `mmspec serve` gives it. Its tokenizer has none."""


def load_text(folder: Path) -> Mini:
    """Return the text mini in `folder`, as written by `text/train_mini.py`. FileNotFoundError if it is missing."""
    from transformers import PreTrainedTokenizerFast

    from mmspec.drafters.checkpoints.load import load_drafter
    from mmspec.minis.weights import llama

    if not (folder / "target" / "model.safetensors").exists():
        raise FileNotFoundError(f"mini text is not in {folder}: make it with mmspec recipe text/train_mini.py -- --out {folder}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    prompts = (folder / "prompts.txt").read_text(encoding="utf-8").split("\n---\n")
    examples = tokenizer(prompts, return_tensors="pt", padding=True)
    examples = {key: examples[key] for key in ("input_ids", "attention_mask")}
    card = (folder / "card.md").read_text(encoding="utf-8")
    target, drafters = llama(folder / "target"), {"model": llama(folder / "drafter")}
    for path in sorted((folder / "drafters").glob("*/config.json")):
        drafters[path.parent.name] = load_drafter(path.parent, target)
    return Mini(target, drafters, tokenizer, examples, card)


def load_vision(folder: Path, part: str) -> Mini:
    """Return `part` ("scenes" or "fashion") of the vision mini in `folder`. FileNotFoundError if it is missing."""
    from mmspec.minis.images import load_images

    return Mini(**load_images(folder / part), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_continuous(folder: Path, head: str) -> Mini:
    """Return the mini of continuous tokens in `folder` whose target has a `head`. FileNotFoundError if it is missing."""
    from mmspec.minis.latents import load_latents

    return Mini(**load_latents(folder, head), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_speech(folder: Path) -> Mini:
    """Return the speech mini in `folder`. FileNotFoundError if it is missing."""
    from mmspec.minis.speech_model import load_utterances

    return Mini(**load_utterances(folder), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_vlm(folder: Path) -> Mini:
    """Return the vision-language mini in `folder`. FileNotFoundError if it is missing."""
    from mmspec.minis.vlm_model import load_sights

    return Mini(**load_sights(folder), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_recsys(folder: Path) -> Mini:
    """Return the recommender mini in `folder`. FileNotFoundError if it is missing."""
    from mmspec.minis.items import load_items

    return Mini(**load_items(folder), card=(folder / "card.md").read_text(encoding="utf-8"))


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)  # names of 0.1
