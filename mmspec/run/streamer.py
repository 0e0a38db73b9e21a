"""transformers' streamers, fed while a generation runs."""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.records import Step


class StreamerFeed:
    """Passes every committed run to a transformers streamer.

    Args:
        streamer: the streamer, or None for none.
        prompt: LongTensor [1, P], passed first; None to leave it out.
    """

    def __init__(self, streamer: Any, prompt: Tensor | None = None):
        self.streamer, self.prompt = streamer, prompt

    def __enter__(self) -> "StreamerFeed":
        if self.streamer is not None and self.prompt is not None:
            self.streamer.put(self.prompt.cpu())
        return self

    def __call__(self, step: Step) -> None:
        """Pass what a round committed in row 0."""
        if self.streamer is not None and step.committed.values[0]:
            self.streamer.put(torch.tensor(step.committed.values[0]))

    def __exit__(self, *error: object) -> None:
        if self.streamer is not None:
            self.streamer.end()
