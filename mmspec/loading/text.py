"""A target with its drafter and tokenizer, by name or path, for commands and recipes.

`trust_remote_code` is off: no code of a checkpoint is executed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mmspec import minis
from mmspec.loading.model_drafter import check_options, with_model
from mmspec.loading.transformers import dtype_of, load_model
from mmspec.minis import HOME, shipped_drafters
from mmspec.models.compat import execution_device
from mmspec.run.config import Config, DrafterSection
from mmspec.run.registry import ACCEPT, DRAFTERS, SELF_DRAFTING, build
from mmspec.text.inputs.vision_inputs import VisionPrompt, process_chat, process_vision_inputs
from mmspec.utils.devices import device_of
from mmspec.utils.files import is_path, read_texts
from mmspec.utils.names import unknown

MINIS = {"mini": "text", "vlm": "vlm"}
"""Names of the shipped pairs on the command line, and in `mmspec.load`."""
_TRAINED = ("stop_below", "states", "layer_ids", "int8")


@dataclass(frozen=True)
class Pair:
    """Everything `mmspec.text.generate` needs besides the prompt. `drafter` and `accept` are its arguments of these names."""

    name: str
    target: Any
    processor: Any  # a tokenizer, or the processor of a model that sees or hears
    drafter: Any
    drafter_name: str
    accept: Any
    config: Config
    model: Any = None  # the drafter's transformers model, where it is one
    own_tokenizer: Any = None  # the drafter's tokenizer, where it differs from the target's
    examples: tuple[str | VisionPrompt, ...] = ()
    chat: bool = False  # wrap prompts in the target's chat template
    view: Any = None  # what the drafter reads of prompts with pictures

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer."""
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def hears(self) -> bool:
        """True if the target reads sound instead of text."""
        return self.target.main_input_name in ("input_features", "input_values")

    @property
    def sees(self) -> bool:
        """True if the target reads pictures within its prompt."""
        from mmspec.models.families.registry import SEES

        return self.target.config.model_type in SEES

    @property
    def exactness(self) -> str:
        """Exactness of the pair's accept rule."""
        from mmspec.run.rules import rule_of

        return rule_of(self.accept, self.config.run.temperature).exactness

    def inputs(self, prompts: Sequence[str | VisionPrompt]) -> dict[str, Any]:
        """Return the prompts [B, P] as the target takes them: all with pictures, or none."""
        if self.hears:
            raise ValueError(f"{self.name} reads sound, not text: run it with mmspec text --audio FILE")
        if any(isinstance(each, VisionPrompt) for each in prompts):
            return self._look([each for each in prompts if isinstance(each, VisionPrompt)])
        texts = [each for each in prompts if isinstance(each, str)]
        found = self.tokenizer([self.wrapped(each) for each in texts], return_tensors="pt", padding=True, add_special_tokens=not self.chat)
        return {key: found[key].to(execution_device(self.target)) for key in ("input_ids", "attention_mask")}

    def _look(self, requests: Sequence[VisionPrompt]) -> dict[str, Any]:
        if not self.sees:
            from mmspec.models.families.registry import SEES

            raise ValueError(f"{self.name} reads text, not pictures: give a model that sees ({', '.join(SEES)})")
        return self._on_target(process_vision_inputs(self.processor, requests, self.name, self.chat))

    def chat_inputs(self, messages: Sequence[Mapping[str, Any]], pictures: Sequence[Any] = ()) -> dict[str, Any]:
        """Return a chat with pictures as a target that sees takes it [1, P]: see `process_chat`."""
        return self._on_target(process_chat(self.processor, messages, pictures, self.name))

    def _on_target(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs on the target's device and in its dtype."""
        target, exact = self.target, ("second_per_grid_ts",)  # positions follow from it: half precision would move them
        dtypes = {key: target.dtype if value.is_floating_point() and key not in exact else None for key, value in found.items()}
        return {key: value.to(execution_device(target), dtypes[key]) for key, value in found.items()}

    def wrapped(self, prompt: str) -> str:
        """Return the prompt in the target's chat template, if `chat` is set."""
        if not self.chat:
            return prompt
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ValueError(f"{self.name} has no chat template: leave --chat out")
        return self.tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    @property
    def tree(self) -> Any:
        """The `tree` of its calls."""
        return self.config.drafter.tree if shaped(self.config.drafter.kind) else None

    @property
    def stop_below(self) -> Any:
        """The `stop_below` of its calls; the folder of an acceptance head as a stop that asks the head."""
        value = self.config.drafter.options.get("stop_below") if shaped(self.config.drafter.kind) else None
        head = isinstance(value, str) and value != "adaptive" and Path(value).expanduser().is_dir()
        return learned_stop(value, self.target.device) if head else value

    def generate(self, inputs: dict[str, Any], **changes: Any) -> Any:
        """Call `mmspec.text.generate` with this pair's settings; `changes` override them."""
        from mmspec import text

        run = self.config.run
        settings = {
            "drafter": self.drafter,
            "accept": self.accept,
            "draft_length": self.config.drafter.length,
            "tree": self.tree,
            "stop_below": None if "drafter" in changes else self.stop_below,
            "max_new_tokens": run.max_new_tokens,
            "temperature": run.temperature,
            "top_k": run.top_k,
            "top_p": run.top_p,
            "repetition_penalty": run.repetition_penalty,
            "seed": run.seed,
        }
        if self.view is not None and "drafter" not in changes:
            settings["view"] = self.view
        return text.generate(self.target, inputs, **(settings | changes))


def load_pair(config: Config, device_map: str | None = None) -> Pair:
    """Return the target, drafter and rule of `config`. ValueError for what cannot be loaded. `device_map`: see `load_model`."""
    device = device_of(config.target.device)
    accept = rule(config)
    name, examples, mini = config.target.path, (), None
    if name in MINIS:
        if device_map is not None:
            raise ValueError(f"device_map is {device_map!r}, but {name} stands on one device: leave it out")
        mini = minis.load(MINIS[name])
        target, processor = mini.target.to(device, dtype_of(config.target.dtype)), mini.processor
        if name == "vlm":
            from mmspec.minis.vlm_model import examples_of

            examples = tuple(VisionPrompt(asked, tuple(pictures)) for pictures, asked in examples_of(HOME / "vlm"))
        else:
            examples = tuple(processor.batch_decode(mini.examples["input_ids"], skip_special_tokens=True))
    else:
        target, processor = load_model(name, config.target.dtype, device, device_map)
    chat = name == "vlm"  # whose template puts its questions
    pair = Pair(name, target, processor, None, config.drafter.kind, accept, config, examples=examples, chat=chat)
    return with_drafter(pair, mini, device)


def with_drafter(pair: Pair, mini: Any, device: Any) -> Pair:
    """Return `pair` with the drafter that its config names; the target is shared.

    Args:
        pair: without a drafter.
        mini: the mini that the target is of; None for other models.
        device: where a drafter's model is put.

    Raises:
        ValueError: for a drafter that cannot be loaded.
    """
    from mmspec.run.composition import is_composed, named

    section = pair.config.drafter
    if section.tree is not None and not shaped(section.kind):
        raise ValueError(f"drafter {section.kind!r} grows no trees: leave tree out, or draft with a model or a trained drafter")
    if section.references is not None and section.kind != "lookup":
        raise ValueError(f"drafter.references is {section.references!r}, but drafter.kind is {section.kind!r}: only lookup quotes texts")
    if section.kind == "none":
        if section.options:
            raise ValueError(f"drafter.options is {section.options}, but drafter.kind is 'none', which takes none: name a drafter too")
        return pair
    if is_composed(section.kind):
        return replace(pair, drafter=named(section.kind, lambda name: _part(name, section, pair, mini, device)))
    if section.kind == "trained":
        return replace(pair, drafter=_trained(section, pair.target), drafter_name=section.path)
    if section.kind in _owned() and section.path is None:
        return _own(section, pair, mini)
    if section.references is not None:
        texts = [pair.tokenizer(text, add_special_tokens=False)["input_ids"] for text in read_texts(section.references)]
        return replace(pair, drafter=build("lookup", DRAFTERS, "drafter", {**section.options, "references": texts}))
    if section.kind != "model":
        return replace(pair, drafter=_model_free(section, pair.config.allow_code))
    return with_model(pair, device)


def _part(name: str, section: DrafterSection, pair: Pair, mini: Any, device: Any) -> Any:
    """The part `name` of a cascade, as `generate` takes a drafter."""
    kind, path = named_drafter(name)
    found = with_drafter(replace(pair, config=replace(pair.config, drafter=DrafterSection(kind=kind, path=path))), mini, device)
    if found.own_tokenizer is not None:
        raise ValueError(f"{name} has another vocabulary than {pair.name}, so it cannot be a part of {section.kind!r}")
    return found.drafter


@lru_cache(maxsize=4)
def learned_stop(folder: str, device: Any) -> Any:
    """Return a stop that asks the acceptance head in `folder`. ValueError if there is none."""
    from mmspec.drafters.stops import AcceptanceHead, Learned

    return Learned(AcceptanceHead.load(Path(folder).expanduser()).to(device))


def shaped(kind: str) -> bool:
    """Return True if drafters of this kind grow trees and have confidences."""
    return kind in ("trained", "mtp", *SELF_DRAFTING, *_owned())


def _owned() -> tuple[str, ...]:
    """Names of the minis' own drafters. "model" is a mini's drafter model; for mini vlm, the one that reads pictures."""
    return ("model", "vlm", "text", *dict.fromkeys(shipped_drafters("text") + shipped_drafters("vlm")))


def _own(section: DrafterSection, pair: Pair, mini: Any) -> Pair:
    """`pair` with one of the mini's own drafters, by name."""
    if mini is None:
        other = f"a drafter's path, or one of {', '.join(DRAFTERS)}" if section.kind == "model" else "a trained drafter's folder"
        raise ValueError(f"drafter {section.kind!r} is the mini's own: for {pair.name} give {other}")
    check_options(section)
    found = {"model": mini.drafters.get("vlm"), **mini.drafters}.get(section.kind)
    if found is None:
        raise ValueError(f"mini {MINIS[pair.name]} has no drafter {section.kind!r}; it has: {', '.join(mini.drafters)}")
    found = found.to(pair.target.device, pair.target.dtype)
    return replace(pair, drafter=found, model=found if hasattr(found, "generate") else None)


def _trained(section: DrafterSection, target: Any) -> Any:
    """The drafter net in a folder, on the target's device and in its dtype."""
    from mmspec.drafters.checkpoints.load import load_drafter

    if section.path is None:
        raise ValueError("drafter 'trained' needs path: what mmspec recipe text/train_drafter.py wrote, or a published drafter's folder")
    for key in section.options:
        if key not in _TRAINED:
            raise ValueError(f"unknown key {key!r} for drafter 'trained'; valid: {', '.join(_TRAINED)}")
    return load_drafter(section.path, target, **{key: value for key, value in section.options.items() if key != "stop_below"})


def _model_free(section: DrafterSection, allow_code: bool) -> Any:
    """A drafter by name; without options the name itself, which `generate` resolves for the rule."""
    kind, options = section.kind, section.options
    if kind == "datastore":
        from mmspec.drafters.retrieval.datastore import Retrieval

        return build(kind, {kind: f"{Retrieval.__module__}:Retrieval"}, "drafter", {"datastore": _datastore(section.path), **options})
    if kind == "pools":
        if section.path is None:
            raise ValueError("drafter 'pools' needs path: the file that Pools.save or mmspec recipe text/learn_pools.py wrote")
        return build(kind, {kind: "mmspec.drafters.retrieval.pools:from_file"}, "drafter", {"path": section.path, **options})
    if shaped(kind):
        options = {key: value for key, value in options.items() if key != "stop_below"}
    if kind in DRAFTERS and not options:
        return kind
    table = {"none": "", "model": "", "trained": "", "datastore": "", "pools": "", **DRAFTERS}
    return build(kind, table, "drafter", options, allow_code=allow_code)


def _datastore(path: str | None) -> Any:
    from mmspec.drafters.retrieval.datastore import Datastore

    if path is None or not Path(path).is_file():
        raise FileNotFoundError(
            f"datastore {path} does not exist: write one with mmspec recipe text/build_datastore.py -- TEXTS --out FILE.npy"
        )
    return Datastore.open(path)


def rule(config: Config) -> Any:
    """Return the accept rule of `config`: "exact", or an object."""
    kind, options = config.accept.kind, config.accept.options
    plain = kind == "exact" and not options
    return kind if plain else build(kind, {"exact": "", **ACCEPT}, "accept rule", options, allow_code=config.allow_code)


def named_drafter(name: str) -> tuple[str, str | None]:
    """Return (kind, path) of a drafter named on the command line: a kind, a trained one's folder, or a model's path or hub name."""
    if name in ("none", *DRAFTERS, *_owned()) or ":" in name:
        return name, None
    if name.endswith((".npy", ".npz")):
        return "datastore" if name.endswith(".npy") else "pools", name
    if (Path(name).expanduser() / "config.json").exists():
        from mmspec.drafters.checkpoints.load import is_drafter

        return ("trained" if is_drafter(name) else "model"), name
    if Path(name).expanduser().exists() or is_path(name) or "/" in name:
        return "model", name
    known = ["none", *(kind for kind in (*_owned(), *DRAFTERS) if kind != "none")]
    raise unknown("drafter", name, known, "a model's path", "a trained drafter's", "a datastore (*.npy)", "pools (*.npz)")
