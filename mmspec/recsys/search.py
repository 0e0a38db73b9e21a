"""What a search for items is made of: prompts, the target, and the drafter for the value of `drafter=`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.beams.trie import Trie
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.protocols import Drafter
from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.drafters.model.beams import BeamDrafter, BeamModel, BeamSource
from mmspec.drafters.model.descendants import Descendants
from mmspec.drafters.none import NoDraft
from mmspec.models.beam_target import BeamTarget
from mmspec.models.families.registry import family_of
from mmspec.models.family import Family
from mmspec.models.target import HFTarget
from mmspec.recsys.catalogue import SHOWN, Catalogue, Item
from mmspec.recsys.methods import BeamMethod
from mmspec.run.settings.generation_config import beam_settings
from mmspec.utils.names import shown

SPARE, SPARE_ON_GPU = 64, 256
"""Columns that cost as much as the rest of a forward, on a CPU and on a GPU."""


def history_prompts(catalogue: Catalogue, histories: Sequence[Sequence[Item]], device: torch.device) -> dict[str, Tensor]:
    """Encode histories as prompts.

    Args:
        catalogue: the items.
        histories: the items of each user, oldest first.
        device: where the prompts are put.

    Returns:
        `input_ids` and `attention_mask` [B, P], and under `SHOWN` the items they contain, for drafters that count items.

    Raises:
        ValueError: naming the first invalid history.
    """
    return catalogue.inputs(histories, device) | {SHOWN: catalogue.shown(histories, device)}


def path_processors(model: Any, family: Family, inputs: Mapping[str, Any], levels: int) -> Pipeline:
    """Return the processors of a model's generation config for some prompts; see `beam_settings`."""
    return Pipeline(beam_settings(model, inputs, family.prompt(model, inputs), levels))


def beam_target(model: Any, family: Family, trie: Trie, k: int, width: int, tokens: Tensor | None, processors: Any = None) -> BeamTarget:
    """Return the target of a search, with capacity for all beams and for the draft tokens of one round.

    Args:
        model: a transformers model.
        family: its family.
        trie: the catalogue's paths.
        k: beams kept on every level.
        width: beams drafted a level; 0 where nothing is drafted.
        tokens: the tokens of the paths, ascending; None for all.
        processors: applied to its log-probabilities; a `Pipeline` or `RowPipelines`, None for nothing.

    Returns:
        The target.
    """
    reserve = k * trie.levels + width * (trie.levels - 1) + 1
    return BeamTarget(HFTarget(model, family, processors or Pipeline(), reserve=reserve), trie, tokens)


def beam_drafter(drafter: Any, target: BeamTarget, mode: BeamMethod, k: int, width: int, temperature: float) -> Drafter:
    """Return the drafter for the value of `drafter=`, choosing draft tokens as the mode's rule needs.

    Args:
        drafter: None, a drafter, a model, or a source of distributions.
        target: the target.
        mode: how beams are selected.
        k: beams kept on every level.
        width: beams drafted a level.
        temperature: of the methods that sample.

    Returns:
        The drafter.

    Raises:
        ValueError: for anything else, and for models that do not fit the target.
    """
    if drafter is None:
        return NoDraft()
    if hasattr(drafter, "begin"):
        return drafter
    return BeamDrafter(beam_source(drafter, target, k, width), target.trie, mode.spread(k, width, temperature))


def look_ahead(mode: BeamMethod, trie: Trie, k: int, spare: int) -> Drafter:
    """Return the drafter of a search without one: it drafts all descendants of the beams where few are left.

    Args:
        mode: how beams are selected; nothing is drafted where it does not draft, or its rule reads how draft tokens were drawn.
        trie: the catalogue's paths.
        k: beams kept on every level.
        spare: draft tokens a level of the whole batch beyond the beams; see `spare_columns`.

    Returns:
        The drafter.
    """
    exact = mode.rule(trie, k, 1.0).exactness == TOKEN_EXACT
    return Descendants(trie, k, spare) if exact and not mode.plain and spare else NoDraft()


def spare_columns(device: torch.device) -> int:
    """Return how many columns cost less than a forward costs beside its columns, on `device`."""
    return SPARE_ON_GPU if device.type == "cuda" else SPARE


def beam_source(drafter: Any, target: BeamTarget, k: int, width: int) -> BeamSource:
    """Return the source of distributions for the value of `drafter=`.

    Args:
        drafter: a source, or a model, which is searched like the target.
        target: the target.
        k: beams kept on every level.
        width: beams drafted a level.

    Returns:
        The source.

    Raises:
        ValueError: for anything else, and for models that do not fit the target.
    """
    return drafter if hasattr(drafter, "beam_guide") else BeamModel(_as_target(drafter, target, k, width))


def _as_target(model: Any, target: BeamTarget, k: int, width: int) -> BeamTarget:
    if not hasattr(model, "generate"):
        raise ValueError(
            f"drafter is {shown(model)}: give None, a transformers model, or a source of distributions such as mmspec.recsys.Retriever"
        )
    theirs, mine = target.target.model.config, model.config
    if mine.is_encoder_decoder != theirs.is_encoder_decoder:
        raise ValueError("target and drafter must both be decoder-only, or both encoder-decoder: their prompts end in different tokens")
    size = mine.get_text_config(decoder=True).vocab_size
    if size <= int(target.trie.token.max() if target.tokens is None else target.tokens[-1]):
        raise ValueError(f"the drafter has {size} tokens, fewer than the catalogue's paths use: train one on this catalogue")
    same = size == theirs.get_text_config(decoder=True).vocab_size
    processors = target.target.processors if same else None
    return beam_target(model, family_of(model), target.trie, k, width, target.tokens, processors)
