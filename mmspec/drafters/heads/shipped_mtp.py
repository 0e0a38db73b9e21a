"""`drafter="mtp"`: the multi-token prediction modules in the target's own checkpoint."""

from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from mmspec.drafters.heads.mtp import ChainedMTP, ChainGuide
from mmspec.models.target import HFSession

_LOADED: "WeakKeyDictionary[nn.Module, ChainedMTP]" = WeakKeyDictionary()
_LOCK = Lock()


@dataclass(frozen=True)
class ShippedMTP:
    """Drafts with the multi-token prediction modules that the target's checkpoint holds (DeepSeek-V3, GLM-4.5, Qwen3-Next, Qwen3.5).

    They are read from the folder or hub name that the target was loaded from, once for each target, and share its embedding and head.
    """

    def guide(self, session: HFSession) -> ChainGuide:
        """Return the guide of one generation.

        Args:
            session: the target's session.

        Returns:
            The guide.

        Raises:
            ValueError: if the family declares no modules, or the checkpoint holds none.
        """
        return modules_of(session.target.model).guide(session)


def modules_of(target: Any) -> ChainedMTP:
    """Return the modules of a target's checkpoint, on its device and in its dtype.

    Args:
        target: a transformers model.

    Returns:
        The modules; the same object for the same target.

    Raises:
        ValueError: as `ChainedMTP.from_pretrained`.
    """
    with _LOCK:
        net = _LOADED.get(target)
        if net is None:
            net = _LOADED[target] = ChainedMTP.from_pretrained(target).requires_grad_(False)
        device, dtype = _place(target)
        first: Any = net.layers[0]
        if first.eh_proj.weight.dtype != dtype:  # else parts that transformers keeps in another dtype would be cast, too
            net.to(dtype)
        return net.to(device)


def _place(target: Any) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the target's head, which reads what the modules return."""
    weight = target.get_output_embeddings().weight
    return weight.device, weight.dtype
