"""Speech models by name: the shipped mini, a folder written by the training recipe, a transformers model. `trust_remote_code` is off."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmspec import minis
from mmspec.models.checkpoint_loading import loaded
from mmspec.run.registry import DRAFTERS
from mmspec.speech.families.base import SpeechModel
from mmspec.utils.files import is_path
from mmspec.utils.names import shown

MINIS = ("mini", "speech")
DTYPES = ("float32", "bfloat16", "float16", "auto")


@dataclass(frozen=True)
class Speaker:
    """A speech model with its drafter, ready for `mmspec.speech.synthesize`."""

    name: str
    model: SpeechModel
    drafter: Any = None  # as `synthesize` takes it
    drafter_name: str = "none"
    examples: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def load_speaker(name: str = "mini", drafter: str | None = None, dtype: str = "float32", device: torch.device | str = "cpu") -> Speaker:
    """The speaker called `name`.

    Args:
        name: "mini" or "speech", a folder that `speech/train_target.py` wrote, a folder or hub name of a speech model
            (`mmspec.speech.load` says which).
        drafter: "model" or another name of the mini or folder, a name of `mmspec.run.registry.DRAFTERS`, a folder of a trained
            drafter or of a small model over the same ids, "none". By default "model" where there is one, else none.
        dtype: float32, bfloat16, float16 or auto (float32); sound is always made in float32.

    Raises:
        ValueError, FileNotFoundError: in one line, for what cannot be had.
    """
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {shown(dtype)}; valid: {', '.join(DTYPES)}")
    found = _parts(name)
    kind = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    target = found["target"]
    target.model.to(device, kind)
    if drafter is None:
        drafter = "model" if "model" in found["drafters"] else "none"
    proposer = _drafter(drafter, found["drafters"], target)
    net = proposer.model if isinstance(proposer, SpeechModel) else proposer
    if isinstance(net, torch.nn.Module):
        net.to(device, kind)
    return Speaker(name, target, proposer, drafter, found["examples"])


def _parts(name: str) -> dict[str, Any]:
    """`target`, `drafters` and `examples` of the speaker called `name`."""
    if name in MINIS:
        mini = minis.load("speech")
        return {"target": mini.target, "drafters": mini.drafters, "examples": mini.examples}
    home = Path(name).expanduser()
    if not home.exists() and is_path(name):
        raise FileNotFoundError(f"model path {name} does not exist: give mini, a folder with config.json and weights, or a hub name")
    if not ((home / "target").is_dir() and (home / "codec").is_dir()):
        from mmspec.speech.checkpoints.load import load_checkpoint

        return {"target": load_checkpoint(str(home) if home.exists() else name), "drafters": {}, "examples": {}}
    from mmspec.minis.speech_model import load_utterances

    try:
        return load_utterances(home)
    except (OSError, ValueError, RecursionError, KeyError, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        raise ValueError(f"model {name} cannot be loaded: {lines[0] if lines else type(error).__name__}") from None


def _drafter(name: str, own: Mapping[str, Any], target: SpeechModel) -> Any:
    """The drafter called `name`, as `synthesize` takes it."""
    if name == "none":
        return None
    if name in own:
        return own[name]
    if name in DRAFTERS:
        return name
    home = Path(name).expanduser()
    if not (home / "config.json").is_file():
        valid = ", ".join(dict.fromkeys(("none", *own, *(kind for kind in DRAFTERS if kind != "none"))))
        raise ValueError(f"unknown drafter {name!r}; valid: {valid}, or the folder of a trained drafter or a small model")
    from mmspec.drafters.checkpoints.load import is_drafter, load_drafter

    if is_drafter(home):
        return load_drafter(home, target.model)
    import transformers as hf

    try:
        return loaded(hf.AutoModelForCausalLM, home, dtype=torch.float32, trust_remote_code=False).eval()
    except (OSError, ValueError, RecursionError, KeyError) as error:
        raise ValueError(f"drafter {name} cannot be loaded: {(str(error).strip().splitlines() or ['?'])[0]}") from None
