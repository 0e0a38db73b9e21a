"""Small models that ship with mmspec, really trained by the recipes in this repository; each has a card."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.run.names import unknown

HOME = Path(__file__).parent
NAMES = ("text", "vision", "vision-fashion", "continuous", "continuous-mixture", "continuous-masked", "speech", "vlm", "recsys")
"""vision: emoji from captions; vision-fashion: Fashion-MNIST by class. Both are in one folder and share a card.

continuous: Fashion-MNIST as continuous tokens by a diffusion head; continuous-mixture and continuous-masked: the same by other models.
"""


def shipped_drafters(name: str = "text") -> tuple[str, ...]:
    """Names of the trained drafters that ship with a mini beside its drafter model."""
    return tuple(sorted(path.parent.name for path in (HOME / name / "drafters").glob("*/config.json")))


@dataclass(frozen=True)
class Mini:
    """Trained and ready: `target` is the `model` of the public call, `drafters` are its drafters by name, `examples` its inputs."""

    target: Any
    drafters: dict[str, Any]
    processor: Any
    examples: Any
    card: str
    catalogue: Any = None  # of recommenders: what they recommend


def load(name: str) -> Mini:
    """The mini called `name`. ValueError lists the names there are."""
    if not isinstance(name, str) or name not in NAMES:
        raise unknown("mini", name, NAMES)
    import torch

    with torch.random.fork_rng(devices=[]):  # networks are drawn before their weights are read
        return _loaded(name)


def _loaded(name: str) -> Mini:
    if name == "text":
        return load_text(HOME / "text")
    if name == "recsys":
        return load_recsys(HOME / "recsys")
    if name == "speech":
        return load_speech(HOME / "speech")
    if name == "vlm":
        return load_vlm(HOME / "vlm")
    if name.startswith("continuous"):
        return load_continuous(HOME / "continuous", name.partition("-")[2] or "diffusion")
    return load_vision(HOME / "vision", "fashion" if name == "vision-fashion" else "emoji")


def load_text(folder: Path) -> Mini:
    """The text mini in `folder`, as `text/train_mini.py` writes it. FileNotFoundError when it is not there."""
    from transformers import PreTrainedTokenizerFast

    from mmspec.drafters.checkpoints.load import load_drafter

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
    """`part` ("emoji" or "fashion") of the vision mini in `folder`. FileNotFoundError when it is not there."""
    from mmspec.minis.images import load_images

    return Mini(**load_images(folder / part), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_continuous(folder: Path, head: str) -> Mini:
    """The mini of continuous tokens in `folder` whose target has a `head`. FileNotFoundError when it is not there."""
    from mmspec.minis.latents import load_latents

    return Mini(**load_latents(folder, head), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_speech(folder: Path) -> Mini:
    """The mini that speaks in `folder`. FileNotFoundError when it is not there."""
    from mmspec.minis.speech_model import load_utterances

    return Mini(**load_utterances(folder), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_vlm(folder: Path) -> Mini:
    """The mini that sees in `folder`. FileNotFoundError when it is not there."""
    from mmspec.minis.vlm_model import load_sights

    return Mini(**load_sights(folder), card=(folder / "card.md").read_text(encoding="utf-8"))


def load_recsys(folder: Path) -> Mini:
    """The mini recommender in `folder`. FileNotFoundError when it is not there."""
    from mmspec.minis.items import load_items

    return Mini(**load_items(folder), card=(folder / "card.md").read_text(encoding="utf-8"))


def save_llama(model: Any, folder: Path) -> None:
    """Write a Llama as `llama` reads it, its weights as bytes: half the size of half precision."""
    from mmspec.utils.packed_files import save_bytes

    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    save_bytes({name: tensor for name, tensor in model.state_dict().items() if name not in tied}, folder / "model.safetensors")


def llama(folder: Path) -> Any:
    """A Llama whose weights are stored in half precision or as bytes, and run in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from mmspec.utils.packed_files import read_bytes

    config = LlamaConfig.from_pretrained(folder)
    model = LlamaForCausalLM(config).float()
    model.load_state_dict(read_bytes(folder / "model.safetensors"), strict=False)
    model.tie_weights()
    return model.eval()
