"""Heads that draft all codes of a frame at once, for a depth net to check in a run or two (`core.distributions.depth_frame.Jacobi`).

A depth transformer writes a frame's codes one after the other. Heads on the same backbone state draft token them side by side, as the heads
of Medusa (Cai et al. 2024) draft token tokens; the depth net then reads the whole draft token at once. They draw by the noise the depth net
draws by, so a head that only knows a code's distribution nearly still mostly draws that very code. Draft tokens never show in the output,
only in its cost.
"""

import torch
from torch import Tensor, nn

from mmspec.core.distributions.depth_frame import Choose


class CodeHeads(nn.Module):
    """Scores of code 0 from the state; of every other code from the state and code 0, which says most about them.

    With `opening`, a state carries the scores of code 0 behind its `width` numbers, as where the backbone has a head for it: then
    code 0 is no draft token.
    """

    def __init__(self, width: int, books: int, size: int, opening: bool = False):
        super().__init__()
        if books < 2:
            raise ValueError(f"books is {books}: a frame of one code has nothing to be drafted at once")
        self.width, self.books, self.size = width, books, size
        self.first = None if opening else nn.Linear(width, size)
        self.code = nn.Embedding(size, width)
        self.mix = nn.Linear(width, width)
        self.rest = nn.Linear(width, (books - 1) * size)
        nn.init.normal_(self.code.weight, std=width**-0.5)

    def opening(self, hidden: Tensor) -> Tensor:
        """Scores [M, V] of code 0."""
        return hidden[:, self.width :] if self.first is None else self.first(self._state(hidden))

    def behind(self, hidden: Tensor, code: Tensor) -> Tensor:
        """Scores [M, K - 1, V] of the codes behind code 0, `code` [M]."""
        state = self._state(hidden) + self.code(code)
        state = state + nn.functional.silu(self.mix(state))
        return self.rest(state).view(len(state), self.books - 1, self.size)

    def forward(self, hidden: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Both, told code 0 of `codes` [M, K]: for training."""
        return self.opening(hidden), self.behind(hidden, codes[:, 0])

    @torch.no_grad()
    def draft_token(self, hidden: Tensor, choose: Choose) -> Tensor:
        """Codes [M, K], chosen as the depth net's are: the `draft_token` of `Jacobi`."""
        first = choose(self.opening(hidden), 0)
        scores = self.behind(hidden, first)
        return torch.stack([first, *(choose(scores[:, book - 1], book) for book in range(1, self.books))], 1)

    def _state(self, hidden: Tensor) -> Tensor:
        return hidden[:, : self.width].to(self.mix.weight.dtype)
