"""HiViS: a feature drafter that never sees a picture (Xie et al. 2025, arXiv 2509.23928).

It takes in the text of a prompt alone, its positions counted anew. What the pictures mean for the text it reads from the target's
states there, which have seen them. So its cache is as short as the text, whatever the size of the pictures.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.features.eagle import Eagle1
from mmspec.drafters.features.reading import Columns


class HiViS(Eagle1):
    """EAGLE over the text alone: a picture is what the target's states make of it (Xie et al. 2025).

    A learned vector is added to the state at each level, the first for the target's own states, against the drift from the target that
    grows with every draft token. The last of `steps` vectors serves all levels beyond.

    What a picture leaves in the state at its last position is read with the text after it.
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
        return columns if columns.vision_width is None else columns.kept(columns.vision_width.pictures[:, 1:] == 0, closing_up=True)

    def enter(self, state: Tensor, level: int, beside: Tensor | None) -> Tensor:
        """Return the input state of a level; see `FeatureNet.enter`."""
        return state + self.steps[min(level, len(self.steps) - 1)]
