"""Assistants that read the target's keys and values (Gemma-4), and which layers of a target hold those."""

from typing import Any

import torch
import transformers
from torch import Tensor

_ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")
_ALL = "reuse"


def reads_shared_states(model: Any) -> bool:
    """Whether `model` drafts from a target's keys and values. By model type, as `SinglePositionMultiTokenCandidateGenerator` by class name
    (since 5.23)."""
    return isinstance(model, torch.nn.Module) and getattr(getattr(model, "config", None), "model_type", None) in _ASSISTANTS


def buildable(config: Any) -> Any:
    """`config`, changed so that transformers builds an assistant from it.

    All layers of an assistant reuse keys and values, and `Gemma4TextConfig.kv_sharing_modes` of 5.23.0 refuses that, which 5.24 does
    not: the decoder's config becomes one of a subclass with the same name, by which transformers finds the model.
    """
    decoder = getattr(config, "text_config", None)
    if getattr(config, "model_type", None) not in _ASSISTANTS or decoder is None:
        return config
    try:
        _ = decoder.kv_sharing_modes
    except AttributeError:
        raise ValueError(f"{config.model_type} needs transformers 5.23 or newer; this is {transformers.__version__}") from None
    except ValueError:
        kind = type(decoder)
        modes = property(lambda self: [_ALL] * self.num_hidden_layers)
        decoder.__class__ = type(kind.__name__, (kind,), {"kv_sharing_modes": modes, "__module__": kind.__module__})
    return config


def sharing_layers(config: Any) -> dict[str, int]:
    """Kind of attention -> the layer of a target whose keys and values an assistant's layers of that kind read.

    Relies on `kv_sharing_modes` of the decoder's config (since 5.23), which says "store" for them; where nothing is shared inside the
    target, the last layer of each kind.

    Args:
        config: the target's.

    Returns:
        The layers; empty for models that declare no sharing.
    """
    decoder = config.get_text_config(decoder=True)
    modes, kinds = getattr(decoder, "kv_sharing_modes", None), getattr(decoder, "layer_types", None)
    if modes is None or kinds is None:
        return {}
    last = {kind: layer for layer, kind in enumerate(kinds) if modes[layer] != _ALL}
    return last | {kind: layer for layer, kind in enumerate(kinds) if modes[layer] == "store"}


def drafted(model: Any, inputs: Tensor, positions: Tensor, masks: dict[str, Any], shared: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """One forward of an assistant, as its own `forward` runs it, with masks of one's own.

    Relies on its parts (`pre_projection`, `model`, `post_projection`, `lm_head` and `masked_embedding`; since 5.23).

    Args:
        model: the assistant.
        inputs: [B, M, 2 H] embeddings of values beside the states before them.
        positions: [B, M].
        masks: kind of attention -> mask, as its attention takes it.
        shared: kind of attention -> (keys, values) of the target.

    Returns:
        Logits [B, M, V], and states [B, M, H] for the next values.
    """
    out = model.model(
        inputs_embeds=model.pre_projection(inputs),
        attention_mask=masks,
        position_ids=positions,
        shared_kv_states=shared,
        use_cache=False,
        logits_to_keep=slice(None),  # any number would cut columns off before layers that reuse keys
    ).last_hidden_state
    states = model.post_projection(out)
    if not model.config.use_ordered_embeddings:
        return model.lm_head(out), states
    return _floored(model.masked_embedding(out, model.lm_head.weight), model.masked_embedding), states


def _floored(logits: Tensor, embedder: Any) -> Tensor:
    """`logits` [B, M, V] of which most values have the least of all minus 1: each node gets a least one of its own, whatever the batch."""
    if embedder.centroid_intermediate_top_k >= embedder.num_centroids:
        return logits
    found = logits > logits.amin()
    least = torch.where(found, logits, torch.inf).amin(-1, keepdim=True)
    return torch.where(found, logits, least - 1)
