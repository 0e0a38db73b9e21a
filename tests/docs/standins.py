"""What the blocks of the docs run on in place of checkpoints that cannot be downloaded: small models with the same calls.

Everything else is real: a block's own calls of mmspec, transformers and diffusers run, with the arguments that the page shows.
"""

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import diffusers
import pyarrow
import torch
import transformers
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from PIL import Image
from pyarrow import parquet

import mmspec
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.retrieval.pools import Pools
from mmspec.speech.checkpoints.load import load_checkpoint as load_speech
from mmspec.speech.sound.audio import save
from mmspec.vision.checkpoints import nextstep
from tests.docs.pages import ROOT
from tests.speech import small_csm, small_pocket, small_published, small_whisper
from tests.vision import small_checkpoints, small_models, small_nextstep, small_pipeline

TOKENS = 8
"""The most new tokens that a block of the docs generates here."""

ROWS = 3
"""Of mini text's prompts, and of keys that a page gives for them."""

_load, _pools = mmspec.load, Pools.drafter


@functools.cache
def mini(name: str) -> Any:
    """A mini, read once, as pages load them again and again; of mini text's prompts, the first `ROWS`."""
    found = _load(name)
    return replace(found, examples={key: value[:ROWS] for key, value in found.examples.items()}) if name == "text" else found


def _pair(target: str, drafter: str) -> Any:
    """A `from_pretrained`: the mini's drafter for names that a page calls its drafter, else its target."""

    def load(name: str) -> Any:
        found = mini(target)
        smaller = any(size in name for size in ("1B", "0.6B", "3B"))
        return found.drafters[drafter] if smaller else found.target

    return load


def _hub(real: Any, stand_in: Any) -> Any:
    """A `from_pretrained` that gives `stand_in` for names of a hub, and reads folders that are there."""

    def load(name: str, **options: Any) -> Any:
        return real(name, **options) if Path(name).exists() else stand_in(name)

    return load


def _pipeline(name: str) -> DDPMPipeline:
    torch.manual_seed(0)
    sizes = {"block_out_channels": (8, 8), "down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    net = UNet2DModel(sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=4, **sizes).eval()
    return DDPMPipeline(net, DDPMScheduler(num_train_timesteps=100))


def _users(path: Path) -> None:
    """A table of users for the pages about recommendations."""
    histories = [list(history) for history in mini("recsys").examples[:4]]
    parquet.write_table(pyarrow.table({"user_id": list(range(len(histories))), "history": histories}), path)


def _few(call: Any) -> Any:
    """`call` with at most TOKENS new tokens, uncaptured: `tests/text/test_capture.py` has what compiling changes."""

    def run(*args: Any, **options: Any) -> Any:
        options.pop("capture", None)
        return call(*args, **options | {"max_new_tokens": min(TOKENS, options.get("max_new_tokens", TOKENS))})

    return run


def _few_seconds(call: Any) -> Any:
    """`call` with one second of sound for models that never end by themselves."""

    def run(model: Any, *args: Any, **options: Any) -> Any:
        return call(model, *args, **({} if "voice" in options or "samplers" in options else {"max_seconds": 1.0}) | options)

    return run


def _heads(target: Any) -> Any:
    """What `speech/train_heads.py` trains, untrained."""
    return new_net("latent", target).eval()


@contextmanager
def checkpoints(folder: Path) -> Iterator[dict[str, Any]]:
    """Inside, hub names load small models; the value holds what pages name without making it. `folder` is where blocks run."""
    text, load_drafter, pocket = mini("text"), mmspec.load_drafter, small_pocket.pocket()
    Image.new("RGB", (32, 32), "red").save(folder / "cat.jpg")
    _users(folder / "users.parquet")
    for name, wave in zip(("talk.flac", "interview.ogg"), small_whisper.sounds(1.5, 0.6), strict=True):
        save(folder / name, wave, small_whisper.RATE)
    shipped = ROOT / "mmspec" / "minis" / "text" / "drafters" / "eagle3"
    loaded = (
        (transformers.AutoModelForCausalLM, _pair("text", "model")),
        (transformers.AutoModelForImageTextToText, _pair("vlm", "vlm")),
        (transformers.AutoTokenizer, lambda name: text.processor),
        (transformers.AutoProcessor, lambda name: mini("vlm").processor),
        (transformers.CsmForConditionalGeneration, lambda name: small_csm.csm()),
        (transformers.PocketTTSForConditionalGeneration, lambda name: pocket),
        (transformers.JanusForConditionalGeneration, lambda name: small_models.janus()),
        (transformers.JanusProcessor, lambda name: small_checkpoints.janus_processor()),
        (transformers.WhisperForConditionalGeneration, lambda name: small_whisper.whisper(width=32 if "base" in name else 16)),
        (transformers.WhisperProcessor, lambda name: small_whisper.processor()),
        (diffusers.DDPMPipeline, _pipeline),
        (diffusers.GlmImagePipeline, lambda name: small_pipeline.pipeline()),
    )
    replaced = (
        (transformers.BatchEncoding, "to", lambda self, device: self),
        (transformers.BatchFeature, "to", lambda self, device: self),
        (mmspec, "load", mini),
        (nextstep, "load_nextstep", small_nextstep.loaded),
        (mmspec, "load_drafter", lambda path, target=None: _heads(target) if "heads" in path else load_drafter(shipped, target)),
        (Pools, "drafter", lambda self, keys: _pools(self, keys if isinstance(keys, str) else keys[:ROWS])),
        (mmspec, "explain", _few(mmspec.explain)),
        (mmspec.text, "generate", _few(mmspec.text.generate)),
        (mmspec.speech, "load", lambda name: load_speech(small_published.llasa_folder(folder / name.replace("/", "-")))),
        (mmspec.speech, "synthesize", _few_seconds(mmspec.speech.synthesize)),
        (type(text.target), "generate", _few(type(text.target).generate)),
    )
    with ExitStack() as stack:
        for owner, stand_in in loaded:
            stack.enter_context(patch.object(owner, "from_pretrained", _hub(owner.from_pretrained, stand_in)))
        for owner, name, stand_in in replaced:
            stack.enter_context(patch.object(owner, name, stand_in))
        yield {
            "mmspec": mmspec,
            "model": text.target,
            "drafter": text.drafters["model"],
            "inputs": text.examples,
            "name": "a hub's name",
            "processor": small_pocket.processor(),
            "smaller": small_pocket.near(pocket),
        }
