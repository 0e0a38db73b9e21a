"""Drafters on disk: `config.json` and safetensors, in mmspec's own or a published layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mmspec.drafters.checkpoints.nets import net_class
from mmspec.drafters.checkpoints.published import Hints, Reading, layout_of, read_published
from mmspec.drafters.features.eagle3_parts import SharedHead
from mmspec.drafters.int8 import check_int8, is_int8, put_int8_linears
from mmspec.models.compat import execution_device
from mmspec.utils.names import wrong
from mmspec.utils.packing import packed, unpacked
from mmspec.utils.weights import fill, read_config, read_names, read_weights, refuse_other_folder, write_folder

KEY = "mmspec_drafter"


def save_drafter(net: Any, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write `net` to `folder`, atomically.

    Args:
        net: a drafter net.
        folder: the folder to write.
        dtype: dtype of the weights on disk, their own by default; torch.int8 stores matrices as bytes with one scale a row.

    Raises:
        ValueError: if `folder` holds something other than a drafter, and for a drafter loaded in int8.
    """
    if is_int8(net):
        raise ValueError("this drafter was loaded in int8, which loses precision: load it without int8 to save it")
    weights = net.state_dict()
    if dtype == torch.int8:
        weights = packed(weights)
    elif dtype is not None:
        weights = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
    write_folder(Path(folder), {KEY: net.kind, **net.config}, weights, is_drafter)


def check_drafter_folder(folder: str | Path) -> None:
    """Raise ValueError if `save_drafter` would refuse to write to `folder`, so that a training may ask first."""
    refuse_other_folder(Path(folder), is_drafter)


def load_drafter(
    path: str | Path, target: Any = None, *, states: Sequence[int] | None = None, layer_ids: str | None = None, int8: bool = False
) -> Any:
    """The drafter net in folder `path`, in eval mode: `mmspec.text.generate` takes it as `drafter`.

    Reads what `save_drafter` and `export_speculators` write, and the published layouts of EAGLE-1 and -2, EAGLE-3, Medusa and
    `speculators`; docs/formats.md lists the names.

    Args:
        path: a folder with `config.json` and weights.
        target: the transformers model the drafter is for. Needed by layouts that leave out what it tells, such as which of its
            layers are read; an error asks for it. Where given, the drafter goes to its device and dtype, and must suit it.
        states: the target's hidden states an EAGLE-3 drafter reads, numbered as in `mmspec.models.stack`, instead of what the file says.
        layer_ids: what the layer ids of a published EAGLE-3 file number: "inputs" of layers (vLLM, `speculators`) or their
            "outputs" (SpecForge). By default outputs where an `eagle_config` begins with 1, as SGLang draft tokens, else inputs.
        int8: keep linear layers, and the rows of a shared head, in int8, on a CPU: a draft token then reads a quarter of the memory.
            The drafter's distributions change a little; what is generated keeps what the accept rule promises.

    Raises:
        ValueError: for whatever is missing, broken, unsupported or of another shape, in one line; nothing is loaded then.
    """
    if not isinstance(int8, bool):
        raise ValueError(f"int8 is {int8!r}: give True or False")
    if not isinstance(path, str | Path):
        raise wrong("path", path, "give the folder of a drafter, with config.json and weights")
    folder, hints = Path(path).expanduser(), Hints(target, states, layer_ids)
    config = read_config(folder)
    if KEY in config:
        kind = config.pop(KEY)
        net, reading = _made(kind, config, folder), Reading(kind, config, unpacked(read_weights(folder)))
    else:
        reading = read_published(config, read_weights(folder), hints, folder)
        net = _made(reading.kind, reading.options, folder)
    net = fill(net, reading.weights, folder, reading.theirs)
    net = net if target is None else suited(net, target, folder)
    return _in_int8(net) if int8 else net


def _in_int8(net: Any) -> Any:
    """Return `net`, its linear layers replaced. ValueError where int8 is not to be had."""
    weight = next(net.parameters())
    check_int8(f"this {net.kind} drafter", weight.device, weight.dtype)
    put_int8_linears(net)
    if isinstance(getattr(net, "lm_head", None), SharedHead):
        net.lm_head.int8 = True
    return net


def is_drafter(path: str | Path) -> bool:
    """Return True if `path` is a folder with a drafter in a layout that `load_drafter` knows."""
    folder = Path(path).expanduser()
    try:
        config = read_config(folder)
        return KEY in config or layout_of(config, lambda: read_names(folder)) is not None
    except ValueError:
        return False


def from_assistant(model: Any, target: Any) -> Any:
    """Return the drafter net of a transformers assistant, over the assistant's own weights.

    Args:
        model: the assistant, such as a `MuseGlimmerAssistantModel`.
        target: the transformers model it drafts for.

    Raises:
        ValueError: for an assistant that is not supported, or is for another target.
    """
    name = Path(type(model).__name__)
    reading = read_published(model.config.to_dict(), model.state_dict(), Hints(target), name)
    with torch.device("meta"):
        net = net_class(reading.kind)(**reading.options)
    weights = {ours: reading.weights[reading.theirs(ours)] for ours in net.state_dict()}
    net.load_state_dict(weights, assign=True)
    net.rotary = model.rotary_emb
    _check_suited(net, target, name)
    return net.eval()


def _made(kind: Any, options: Mapping[str, Any], folder: Path) -> Any:
    try:
        with torch.random.fork_rng(devices=[]):  # networks are drawn before their weights are read
            return net_class(kind)(**options)
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{folder / 'config.json'} does not describe a drafter: {' '.join(str(error).split())}") from None


def suited(net: Any, target: Any, source: Path) -> Any:
    """Return `net` on the target's device, in its dtype. ValueError if the two do not match."""
    _check_suited(net, target, source)
    return net.to(execution_device(target), target.dtype)


def _check_suited(net: Any, target: Any, source: Path) -> None:
    config = target.config.get_text_config(decoder=True)
    width, size = getattr(net, "width", None) or net.hidden, _size(net)
    if width != config.hidden_size:
        raise ValueError(f"{source} reads hidden states {width} wide, but the target's are {config.hidden_size}: it is for another target")
    if size and size != config.vocab_size:
        raise ValueError(f"{source} is for a target of {size} values, but this one has {config.vocab_size}: it is for another target")


def _size(net: Any) -> int | None:
    """Number of values of the target that the net was made for; None where it uses the target's own head."""
    own = getattr(net, "embed_tokens", None)
    return net.config.get("size") or net.config.get("own_heads") or (own.num_embeddings if own is not None else None)
