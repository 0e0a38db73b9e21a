"""How the decoder of an encoder-decoder model gets the position of each column.

transformers derives a decoder's positions from the length of its cache, one for the whole batch. Columns of a draft, and rows of a ragged
batch, have positions of their own. The mechanism of a decoder is read from its modules, not from its name:

- `PositionIds`: its `forward` takes `position_ids` (Whisper, Moonshine, T5Gemma, and most decoder-only models with cross-attention);
- `DecoderPositionTable`: a module `embed_positions` embeds a position (BART, Marian, Pegasus, M2M100, Speech2Text and similar);
- `RelativeBias`: self-attention adds a bias by distance, in the first block or in every block (T5, UMT5 and similar).

Changes are made on a copy of the model (`models.module_copy`) for one forward.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mmspec.models.compat import relative_buckets
from mmspec.models.compat.cache_name import counts_from_cache
from mmspec.models.layout import Layout

Lookup = Callable[[nn.Module, Layout, Any], Tensor]
"""(position module, layout, its first argument) -> embeddings [B, M, D] of each column's own position."""
Change = tuple[nn.Module, str, Any]
"""(module, attribute, its value during one forward)."""


_ABSENT = object()


class Positions(Protocol):
    """One mechanism, as found in one decoder."""

    def changes(self, decoder: nn.Module, layout: Layout) -> list[Change]:
        """The attributes to replace on modules of `decoder`, which is a copy."""
        ...

    def arguments(self, layout: Layout) -> dict[str, Tensor]:
        """Additional arguments of the decoder's forward."""
        ...

    def limit(self, decoder: nn.Module, config: Any) -> int | None:
        """Number of positions; None for no limit."""
        ...


@dataclass(frozen=True)
class PositionIds:
    """The decoder takes `position_ids`. With `padding` its table begins after that id, which itself has no position."""

    padding: int | None = None

    def changes(self, decoder: nn.Module, layout: Layout) -> list[Change]:
        return []

    def arguments(self, layout: Layout) -> dict[str, Tensor]:
        if self.padding is None:
            return {"position_ids": layout.positions}
        return {"position_ids": _behind_padding(layout, self.padding)}

    def limit(self, decoder: nn.Module, config: Any) -> int | None:
        size = _configured(config)
        return size if size is None or self.padding is None else size - self.padding - 1


@dataclass(frozen=True)
class DecoderPositionTable:
    """The submodule `name` of the decoder embeds positions; `lookup` embeds each column's own."""

    name: str
    lookup: Lookup

    def changes(self, decoder: nn.Module, layout: Layout) -> list[Change]:
        table = decoder.get_submodule(self.name)
        return [(table, "forward", lambda first=None, *args, **kwargs: self.lookup(table, layout, first))]

    def arguments(self, layout: Layout) -> dict[str, Tensor]:
        return {}

    def limit(self, decoder: nn.Module, config: Any) -> int | None:
        table: Any = decoder.get_submodule(self.name)
        return table.num_embeddings - getattr(table, "offset", 0) if self.lookup is learned else _configured(config)


@dataclass(frozen=True)
class RelativeBias:
    """The self-attention modules `names` of the decoder each compute a bias by relative position."""

    names: tuple[str, ...]

    def changes(self, decoder: nn.Module, layout: Layout) -> list[Change]:
        attentions = [decoder.get_submodule(name) for name in self.names]
        return [(attention, "compute_bias", _bias_of(attention, layout)) for attention in attentions]

    def arguments(self, layout: Layout) -> dict[str, Tensor]:
        return {}

    def limit(self, decoder: nn.Module, config: Any) -> int | None:
        return None


def positions_in(decoder: nn.Module, name: str) -> Positions:
    """Find the mechanism of a decoder.

    Args:
        decoder: what `get_decoder()` of an encoder-decoder model returns.
        name: the model's class, for messages.

    Returns:
        One of `RelativeBias`, `PositionIds` and `DecoderPositionTable`.

    Raises:
        ValueError: where the decoder has none of them, naming what is unknown.
    """
    biased = [path for path, module in decoder.named_modules() if _biases(module)]
    if biased:
        return RelativeBias(tuple(biased))
    if "position_ids" in signature(decoder.forward).parameters:
        return PositionIds(_padding_of(decoder))
    tables = [path for path, module in decoder.named_modules() if path.rpartition(".")[2] == "embed_positions"]
    if len(tables) == 1:
        table = decoder.get_submodule(tables[0])
        for known, lookup in _LOOKUPS:
            if known(table):
                return DecoderPositionTable(tables[0], lookup)
        raise ValueError(
            f"{name} embeds the positions of its decoder by {type(table).__name__}, of no known form: "
            "use plain transformers generation for this model"
        )
    raise ValueError(
        f"{name} derives the positions of its decoder in no known way (no position_ids, embed_positions or relative bias): "
        "use plain transformers generation for this model"
    )


@contextmanager
def with_attributes(changes: Sequence[Change]) -> Iterator[None]:
    """During a forward inside, each module has the attribute given for it; afterwards each is restored."""
    before = [(module, name, vars(module).get(name, _ABSENT)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(before):
            if value is _ABSENT:
                vars(module).pop(name, None)
            else:
                setattr(module, name, value)


def _configured(config: Any) -> int | None:
    """The number of positions a decoder's config states."""
    for name in ("max_decoder_position_embeddings", "max_target_positions", "max_position_embeddings"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    return None


def _behind_padding(layout: Layout, padding: int) -> Tensor:
    """Positions as in fairseq: from the padding id + 1 on, and the padding id itself for padding."""
    return torch.where(layout.ids == padding, padding, layout.positions + padding + 1)


def _padding_of(decoder: nn.Module) -> int | None:
    """The padding id of a decoder that counts positions from after it (RoBERTa and similar)."""
    for module in decoder.modules():
        if hasattr(module, "create_position_ids_from_input_ids") and hasattr(module, "position_embeddings"):
            return module.padding_idx  # type: ignore[return-value]
    return None


# --- tables -----------------------------------------------------------------------------------------------------------


def learned(table: Any, layout: Layout, first: Any) -> Tensor:
    """A table of one row a position, after `offset` other rows: learned, or sinusoids computed once."""
    return nn.functional.embedding(layout.positions + getattr(table, "offset", 0), table.weight)


def sinusoids(table: Any, layout: Layout, first: Any) -> Tensor:
    """fairseq's sinusoids: rows begin after the padding id, and the table grows with the positions needed."""
    weights, padding = table.weights, table.padding_idx
    size = layout.view + padding + 2
    if size > len(weights):
        weights = table.get_embedding(size, table.embedding_dim, padding).to(weights)
    return nn.functional.embedding(_behind_padding(layout, padding), weights).detach()


def fsmt_sinusoids(table: Any, layout: Layout, first: Any) -> Tensor:
    """FSMT's: as fairseq's, but a padding id has the position before its own."""
    weights, padding = table.weight, table.padding_idx
    size = layout.view + padding + 2
    if size > len(weights):
        more = table.get_embedding(size, table.embedding_dim, padding).to(weights)
        weights = torch.cat([weights, more[len(weights) :]])
    return nn.functional.embedding(layout.positions + padding + (layout.ids != padding), weights)


def computed(table: Any, layout: Layout, embeds: Tensor) -> Tensor:
    """Pegasus-X computes sinusoids for given positions, one a row of its output."""
    flat = type(table).forward(table, embeds.reshape(1, -1, embeds.shape[-1]), 0, layout.positions.reshape(-1, 1))
    return flat.view(embeds.shape)


def _takes(module: nn.Module, *names: str) -> bool:
    return set(names) <= signature(module.forward).parameters.keys()


_LOOKUPS: tuple[tuple[Callable[[Any], bool], Lookup], ...] = (
    (lambda table: isinstance(table, nn.Embedding) and hasattr(table, "make_positions"), fsmt_sinusoids),
    (lambda table: isinstance(table, nn.Embedding) and counts_from_cache(table), learned),
    (lambda table: hasattr(table, "weights") and hasattr(table, "create_position_ids_from_input_ids"), sinusoids),
    (lambda table: not list(table.parameters()) and _takes(table, "inputs_embeds", "position_ids"), computed),
)


# --- relative bias ----------------------------------------------------------------------------------------------------


def _biases(module: Any) -> bool:
    return getattr(module, "has_relative_attention_bias", False) and hasattr(module, "compute_bias")


def _bias_of(attention: Any, layout: Layout) -> Callable[..., Tensor]:
    """`compute_bias` of `attention` [B, heads, M, S] for each column's own distances."""

    def compute_bias(*args: Any, **kwargs: Any) -> Tensor:
        distance = layout.slot_positions[:, None, :] - layout.positions[:, :, None]
        return attention.relative_attention_bias(relative_buckets(attention, distance)).permute(0, 3, 1, 2)

    return compute_bias
