"""Acceptance of frames of K codes, as a whole and code by code, for random factorised distributions.

    python -m mmspec.bench.synthetic.frame_acceptance --frames 200000

Both distributions are K independent codebooks of 256 codes; the drafter's scores are the target's with noise. `code` is the mean acceptance
probability of a single code, `per_code` that of a frame whose codes are accepted one by one, `whole` that of frame coupling; the last two
columns count what the rules committed.
"""

import argparse
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.frame import Frame
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import Draft, Scored
from mmspec.core.rules.per_code import PerCode
from mmspec.core.rules.token import Token

CODES, NOISE = 256, 0.29
"""Codes of a book; standard deviation of the drafter's error in its scores. With 0.29 a code is accepted with probability 0.885."""
_AT_ONCE = 1000


@dataclass(frozen=True)
class Acceptance:
    """Shares of accepted frames; `code` is a share of codes."""

    code: float
    per_code: float
    whole: float
    judged_per_code: float
    judged_whole: float


def acceptance(books: int, frames: int = 20_000, seed: int = 0, noise: float = NOISE) -> Acceptance:
    """Judge `frames` single frames of `books` codes by both methods. Distributions are drawn anew for every thousand frames."""
    sums = torch.zeros(5, dtype=torch.float64)
    for first in range(0, frames, _AT_ONCE):
        count = min(_AT_ONCE, frames - first)
        sums += _judged(books, count, torch.Generator().manual_seed(seed * 1_000_003 + first), noise) * count
    return Acceptance(*(sums / frames).tolist())


def _judged(books: int, count: int, generator: torch.Generator, noise: float) -> Tensor:
    own = torch.randn(books, CODES, generator=generator, dtype=torch.float64)
    other = own + noise * torch.randn(books, CODES, generator=generator, dtype=torch.float64)
    words = torch.randint(-(2**62), 2**62, (books, count), generator=generator)
    x = Keys(words).draw(other.softmax(-1)).T[:, None]  # [count, 1, K]
    p, q = (Frame(scores.expand(count, 1, -1, -1)) for scores in (own, other))
    start = torch.zeros(count, dtype=torch.long)
    draft = Draft.root(torch.zeros_like(x[:, 0]), start).extend_chain(x, start + 1, q)
    scored, noises = Scored(p.cat(p)), Noise.from_seed(int(words[0, 0]), count)
    chances = Token().accept_prob(p.codes(x), q.codes(x), x)[:, 0]
    whole = Token().accept_prob(p, q, x)
    counted = [rule(draft, scored, noises).accepted.double().mean() for rule in (PerCode(), Token())]
    return torch.stack([chances.mean(), chances.prod(-1).mean(), whole.mean(), *counted])


def main() -> None:
    """Command-line entry point: print the acceptance table as Markdown."""
    parser = argparse.ArgumentParser(description="How often frames of K codes are accepted, whole and code by code (random factors).")
    parser.add_argument("--books", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--frames", type=int, default=20_000, help="frames judged for each number of books")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| books | code | code by code | whole | committed code by code | committed whole |\n|---|---|---|---|---|---|")
    for books in options.books:
        found = acceptance(books, options.frames, options.seed)
        print(f"| {books} | " + " | ".join(f"{share:.3f}" for share in astuple(found)) + " |", flush=True)


if __name__ == "__main__":
    main()
