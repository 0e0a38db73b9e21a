"""The memory that recurrent and convolution states take."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.compat.mixer_cache import States
from mmspec.models.compat.mixers import Mixer, mixers_of
from mmspec.models.recurrent.mixer_run import MixerRun


@dataclass(frozen=True)
class StatesMemory:
    """Bytes of the states of all mixers of a model.

    Args:
        row: those of one row.
        column: inputs of all mixers for one column of one row, which are recorded while a chain is verified.
    """

    row: int
    column: int

    def chain(self, rows: int, nodes: int) -> int:
        """Compute what stands in memory while chains are verified: the states before and after them, and the mixers' inputs.

        Args:
            rows: of the batch.
            nodes: columns of each row's draft, the pending token included.

        Returns:
            Bytes.
        """
        return rows * (2 * self.row + nodes * self.column)

    def tree(self, rows: int, nodes: int) -> int:
        """Compute what stands in memory while trees are verified: the states before them, a copy where they begin, and one for each node.

        Args:
            rows: of the batch.
            nodes: columns of each row's draft, the pending token included.

        Returns:
            Bytes.
        """
        return rows * (2 + nodes) * self.row


def states_memory(config: Any, dtype: torch.dtype = torch.bfloat16) -> StatesMemory:
    """Compute the memory of the states of a model, which is built without weights.

    Args:
        config: its transformers config.
        dtype: of its weights. Most recurrent states are kept in float32 all the same.

    Returns:
        The memory.

    Raises:
        ValueError: for a model without states.
    """
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        mixers = mixers_of(model)
        if not mixers:
            raise ValueError(f"{type(model).__name__} has no mixers, or some that are unknown: its states cannot be counted")
        width = model.config.get_text_config(decoder=True).hidden_size
        x = torch.empty(1, 1, width, dtype=dtype)
        row = sum(_bytes(_after_one_column(model, mixer, x)) for mixer in mixers)
    return StatesMemory(row, len(mixers) * width * dtype.itemsize)


@torch.no_grad()
def _after_one_column(model: Any, mixer: Mixer, x: Tensor) -> States:
    module = model.get_submodule(mixer.path)
    given = cache_keyword(module, None)
    given |= {"position_embeddings": None} if mixer.pair else {}
    return MixerRun(mixer, module, module.forward, given).over(x, None)[1]


def _bytes(states: States) -> int:
    return sum(part.numel() * part.itemsize for part in (states.conv, states.recurrent) if part is not None)
