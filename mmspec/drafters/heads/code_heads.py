"""Heads that draft all codes of a frame at once, verified by a depth net in one or two runs (`core.distributions.depth_frame.Jacobi`).

A depth transformer writes a frame's codes one after the other. These heads read the same backbone state and draft the codes in parallel,
as Medusa's heads do for tokens (Cai et al. 2024); the depth net then reads all of them at once. Heads and depth net draw with the same
noise, so a head whose distribution is close to the depth net's mostly draws the same code. Draft codes change the cost only, never the
output.
"""

import torch
from torch import Tensor, nn

from mmspec.core.distributions.depth_frame import Choose


class CodeHeads(nn.Module):
    """Logits of code 0 from the backbone state, and of every other code from the state and code 0.

    Args:
        width: width of the backbone state.
        books: codes per frame, at least 2.
        size: number of values of a code.
        opening: the state already holds the logits of code 0 after its `width` entries; then code 0 is not drafted.

    Raises:
        ValueError: if `books` is below 2.
    """

    def __init__(self, width: int, books: int, size: int, opening: bool = False):
        super().__init__()
        if books < 2:
            raise ValueError(f"books is {books}: a frame of one code cannot be drafted in parallel")
        self.width, self.books, self.size = width, books, size
        self.first = None if opening else nn.Linear(width, size)
        self.code = nn.Embedding(size, width)
        self.mix = nn.Linear(width, width)
        self.rest = nn.Linear(width, (books - 1) * size)
        nn.init.normal_(self.code.weight, std=width**-0.5)

    def opening(self, hidden: Tensor) -> Tensor:
        """Return logits [M, V] of code 0."""
        return hidden[:, self.width :] if self.first is None else self.first(self._state(hidden))

    def behind(self, hidden: Tensor, code: Tensor) -> Tensor:
        """Return logits [M, K - 1, V] of the codes after code 0, `code` [M]."""
        state = self._state(hidden) + self.code(code)
        state = state + nn.functional.silu(self.mix(state))
        return self.rest(state).view(len(state), self.books - 1, self.size)

    def forward(self, hidden: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of code 0 and of the other codes, given code 0 of `codes` [M, K]. For training."""
        return self.opening(hidden), self.behind(hidden, codes[:, 0])

    @torch.no_grad()
    def draft_token(self, hidden: Tensor, choose: Choose) -> Tensor:
        """Return draft codes [M, K], chosen by `choose` as the depth net's are; the `draft_token` of `Jacobi`."""
        first = choose(self.opening(hidden), 0)
        scores = self.behind(hidden, first)
        return torch.stack([first, *(choose(scores[:, book - 1], book) for book in range(1, self.books))], 1)

    def _state(self, hidden: Tensor) -> Tensor:
        return hidden[:, : self.width].to(self.mix.weight.dtype)
