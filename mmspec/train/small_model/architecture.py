"""The small model before training: with layers and embeddings of its target, or fresh, or of any causal architecture.

Ids are the target's. A smaller vocabulary would be another tokenizer to transformers' assisted generation and to vLLM, so it is refused; a
narrower model makes embeddings and head small instead, and its embeddings begin as the target's on their principal directions, which are
those of the tokens that are used.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.checkpoints.nets import LARGE_VOCABULARY
from mmspec.models.stack import stack
from mmspec.utils.weights import own_memory

_SHARE = 8
"""A model of size "small" has this part of its target's layers."""
_LAYER_LISTS = ("layer", "types", "pattern")
"""Words in the names of config entries that hold one value for every layer."""


def small_model(
    target: Any, size: str = "small", *, layers: int | None = None, fresh: bool = False, start: str | Path | None = None
) -> Any:
    """Make a drafter model with the ids of a target.

    Args:
        target: a causal language model of transformers, or a vision-language model, whose language model is taken.
        size: "small", which has the widths of the target and an eighth of its layers, or the path of a config.json of any causal
            architecture with the target's vocabulary size.
        layers: number of layers in place of an eighth of them. They are taken at even distances, the first and the last among them.
        fresh: begin with random weights, as a model of a config.json always does but for `start_embeddings`.
        start: the transformers folder of a small model that was trained already, to go on from, instead of the other arguments.

    Returns:
        A causal language model in float32, in eval mode, on the CPU.

    Raises:
        ValueError: for targets that are no such model, configs that cannot be read or have another vocabulary, and layers that do not fit.
    """
    config = _text_config(target)
    if start is not None:
        if size != "small" or layers is not None or fresh:
            raise ValueError(f"size is {size!r}, layers {layers} and fresh {fresh}, but {start} is a whole model: leave them out")
        return _trained(Path(start), config)
    if size != "small":
        if layers is not None:
            raise ValueError(f"layers is {layers}, but {size} says how many there are: give one of them")
        return _with_ends(_made(causal_config(Path(size), config)), target)
    total = config.num_hidden_layers
    layers = max(1, total // _SHARE) if layers is None else layers
    if not 1 <= layers <= total:
        raise ValueError(f"layers is {layers}: a model of the target's widths has 1 to {total}, as many as the target")
    kept = evenly_spaced(total, layers)
    made = _with_ends(_made(_shortened(config, kept)), target)
    return made if fresh else _with_layers(made, target, kept)


@torch.no_grad()
def start_embeddings(model: Any, target: Any, counts: Tensor | None = None) -> None:
    """Set a small model's embeddings to its target's, projected where those are wider. Embeddings wider than the target's stay as they are.

    Args:
        model: the small model, with the target's ids.
        target: the target.
        counts: how often each id occurs in the target's text [V], which weighs the projection; None weighs all alike.
    """
    pairs = [(model.get_input_embeddings(), target.get_input_embeddings())]
    if not _tied(model):
        pairs.append((model.get_output_embeddings(), target.get_output_embeddings()))
    for own, other in pairs:
        width, wide = own.weight.shape[1], other.weight.shape[1]
        if width <= wide:
            rows = other.weight.cpu() if width == wide else principal_rows(other.weight.cpu(), width, counts)
            own.weight.copy_(rows[: len(own.weight)])


def share_embeddings(model: Any, target: Any, wanted: bool | None = None) -> bool:
    """Give a small model the embeddings and the head of its target: the same memory, and nothing of them is trained.

    Args:
        model: the small model, on the target's device.
        target: the target, which stays as it is.
        wanted: None shares them above `LARGE_VOCABULARY` values, if they fit.

    Returns:
        True if they are shared now; otherwise nothing is changed.

    Raises:
        ValueError: if they are `wanted` and do not fit: of another shape or dtype, or tied in one of both models only.
    """
    pairs = [(each.get_input_embeddings(), each.get_output_embeddings()) for each in (model, target)]
    own, theirs = ([part.weight for part in pair] for pair in pairs)
    fits = _tied(model) == _tied(target) and all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(own, theirs, strict=True))
    if wanted and not fits:
        shapes = " and ".join(f"{'x'.join(map(str, weight.shape))} in {str(weight.dtype)[6:]}" for weight in (own[0], theirs[0]))
        raise ValueError(
            f"head is 'shared', but the embeddings are {shapes}, the small model's and the target's, or not tied alike: leave it out"
        )
    if wanted is False or not fits or (wanted is None and len(theirs[0]) <= LARGE_VOCABULARY):
        return False
    for part, weight in zip(pairs[0], theirs, strict=True):
        part.weight = weight.requires_grad_(False)
    return True


def evenly_spaced(total: int, count: int) -> tuple[int, ...]:
    """Return `count` of `total` layers at even distances, the first and the last among them; the first alone for one."""
    return tuple(round(place * (total - 1) / max(1, count - 1)) for place in range(count))


def causal_config(path: Path, target: Any) -> Any:
    """Return the config of a causal model in a file, with the special ids of a target's config.

    Args:
        path: config.json, or its folder.
        target: the target's text config.

    Raises:
        ValueError: for a file that holds no transformers config, and for another vocabulary size.
    """
    from transformers import AutoConfig

    file = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        config = AutoConfig.for_model(values.pop("model_type"), **values).get_text_config(decoder=True)
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"size is {str(path)!r}: give small, or the path of a config.json") from None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} is no config of a transformers model: {_first_line(error)}") from None
    if config.vocab_size != target.vocab_size:
        raise ValueError(
            f"vocab_size is {config.vocab_size} in {file}, but the target's is {target.vocab_size}: write that there, since assisted "
            "generation and vLLM need the target's ids; a smaller hidden_size makes the head small"
        )
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(target, name, None))
    return config


def principal_rows(weight: Tensor, width: int, counts: Tensor | None = None) -> Tensor:
    """Project the rows of an embedding on its principal directions.

    Args:
        weight: the embedding [V, H].
        width: number of directions.
        counts: weight of each row [V]; None for equal ones. Rows that never occur weigh a little.

    Returns:
        [V, width].
    """
    rows = weight.float()
    weights = torch.ones(len(rows)) if counts is None else counts.float() / counts.sum() + 0.01 / len(rows)
    second_moments = rows.T @ (rows * weights.to(rows)[:, None])
    directions = torch.linalg.eigh(second_moments).eigenvectors.flip(-1)  # largest first
    return rows @ directions[:, :width]


def _trained(path: Path, target: Any) -> Any:
    """The causal language model in a folder, in float32 and eval mode, with the vocabulary of the config `target`."""
    from transformers import AutoModelForCausalLM

    causal_config(path, target)
    try:
        return own_memory(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)).eval()
    except (OSError, ValueError, RecursionError, KeyError) as error:
        raise ValueError(f"{path} holds no causal language model: {_first_line(error)}") from None


def _text_config(target: Any) -> Any:
    """The config of a target's language model. ValueError for encoder-decoders."""
    config = getattr(target, "config", None)
    if config is None or config.is_encoder_decoder or not hasattr(target, "get_decoder"):
        raise ValueError(f"{type(target).__name__} is no causal language model: only those can be distilled into a small model here")
    return config.get_text_config(decoder=True)


def _shortened(config: Any, kept: Sequence[int]) -> Any:
    """`config` with the layers `kept`, and what it says of each layer."""
    values, total = config.to_dict(), config.num_hidden_layers
    for name, value in values.items():
        if isinstance(value, (list, tuple)) and len(value) == total and any(word in name for word in _LAYER_LISTS):
            values[name] = [value[layer] for layer in kept]
    values[config.attribute_map.get("num_hidden_layers", "num_hidden_layers")] = len(kept)
    return type(config).from_dict({key: value for key, value in values.items() if key not in ("architectures", "dtype")})


def _made(config: Any) -> Any:
    """A model with random weights."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_config(config).float().eval()
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"no causal model of type {config.model_type!r} can be made: {_first_line(error)}; give a config.json") from None


def _with_ends(model: Any, target: Any) -> Any:
    """`model` with the end and padding ids that the target generates with."""
    from transformers import GenerationConfig

    config = target.generation_config
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    model.generation_config = GenerationConfig(**{name: getattr(config, name, None) for name in names})
    return model


@torch.no_grad()
def _with_layers(model: Any, target: Any, kept: Sequence[int]) -> Any:
    """`model` with layers `kept` of the target's decoder, and everything else of it."""
    decoder, theirs = model.get_decoder(), target.get_decoder()
    prefix = next(name for name, module in theirs.named_modules() if module is stack(target)) + "."
    state = {}
    for name, tensor in theirs.state_dict().items():
        if not name.startswith(prefix):
            state[name] = tensor
            continue
        layer, _, rest = name.removeprefix(prefix).partition(".")
        if int(layer) in kept:
            state[f"{prefix}{kept.index(int(layer))}.{rest}"] = tensor
    try:
        decoder.load_state_dict(state)
        if not _tied(model):
            model.get_output_embeddings().load_state_dict(target.get_output_embeddings().state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        names = f"the layers of {type(target).__name__} do not fit {type(model).__name__}"
        raise ValueError(f"{names}: begin with fresh ones ({reason})") from None
    return model


def _tied(model: Any) -> bool:
    """True if the head of a model is its input embedding."""
    head: nn.Module = model.get_output_embeddings()
    return head.weight is model.get_input_embeddings().weight


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
