"""HiViS: a feature drafter that reads no picture positions (Xie et al. 2025, arXiv 2509.23928).

It reads only the text of a prompt, with positions counted anew. Information about the pictures comes from the target's states at the text.
So its cache is as long as the text, whatever the size of the pictures.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.features.eagle import Eagle1
from mmspec.drafters.features.reading import Columns


class HiViS(Eagle1):
    """EAGLE over the text positions only (HiViS, Xie et al. 2025, arXiv 2509.23928).

    A learned vector is added to the state at each level, the first one to the target's own states, to compensate the drift that grows with
    every draft token. The state at a picture's last position is read with the text after it.

    Args:
        sizes: options of the LlamaConfig of the layer.
        steps: number of learned vectors; the last one serves all deeper levels.
        bias: the fusing projection has a bias.

    Raises:
        ValueError: if `steps` is below 1.
    """

    kind = "hivis"

    def __init__(self, sizes: Mapping[str, Any], steps: int = 6, bias: bool = True):
        super().__init__(sizes, bias)
        if steps < 1:
            raise ValueError(f"steps is {steps}: at least one vector is needed, for the target's own states")
        self.config = {"sizes": dict(sizes), "steps": steps, "bias": bias}
        self.steps = nn.Parameter(torch.zeros(steps, self.hidden))

    def reading(self, columns: Columns) -> Columns:
        """Return the columns read of the prompt; see `FeatureNet.reading`."""
        return columns if columns.vision is None else columns.kept(columns.vision.pictures[:, 1:] == 0, closing_up=True)

    def enter(self, state: Tensor, level: int, beside: Tensor | None) -> Tensor:
        """Return the input state of a level; see `FeatureNet.enter`."""
        return state + self.steps[min(level, len(self.steps) - 1)]
