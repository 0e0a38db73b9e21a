"""Semantic ids: every item's embedding as a few codes, coarse to fine, by residual k-means or an RQ-VAE.

Each level quantises the residual of the levels before. Similar items share their first codes, and a last code separates items that share
all others (TIGER, Rajput et al. 2023). `make` does both steps, `fitted` and `assigned` one each; `collisions` reports on the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.utils.kmeans import kmeans

Method = Literal["kmeans", "rqvae"]
Last = Literal["count", "nearest", "plain"]
FITTED_ON = 262_144  # items that codebooks are learnt from at most
CHUNK = 8192  # items coded at a time


@dataclass(frozen=True)
class Collisions:
    """How far codes separate items."""

    items: int
    paths: int  # distinct ones
    largest: int  # the most items on one path
    used: tuple[int, ...]  # per level: the codes in use
    prefixes: tuple[int, ...]  # per level: the distinct beginnings up to it


def make(embeddings: Tensor, method: Method = "kmeans", levels: int = 4, size: int = 64, last: Last = "count", seed: int = 0) -> Tensor:
    """Return codes [items, levels] below `size` for `embeddings` [items, D]; deterministic.

    Args:
        embeddings: [items, D].
        method: "kmeans" or "rqvae".
        levels: codes per item.
        size: codes per level.
        last: "count" numbers the items that share all codes before (TIGER); "nearest" gives each of them the nearest unused code; "plain"
            is one more level of residuals, in which items may share a path.
        seed: seed of the quantiser.
    """
    coder = fitted(embeddings, method, levels, size, last, seed)
    return assigned(coder, embeddings, size, last)


def fitted(
    embeddings: Tensor, method: Method = "kmeans", levels: int = 4, size: int = 64, last: Last = "count", seed: int = 0
) -> "ResidualCentres | RqVae":
    """Return the codebooks that `make` learns; `assigned` gives codes by them, to new items too.

    Beyond `FITTED_ON` items they are learnt from a part of them, drawn with `seed`.
    """
    _check(embeddings, method, levels, size, last)
    learnt, points = levels - (last == "count"), embeddings.float()
    if len(points) > FITTED_ON:
        points = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:FITTED_ON]]
    return ResidualCentres.fitted(points, learnt, size, seed) if method == "kmeans" else RqVae.trained(points, learnt, size, seed)


def assigned(coder: "ResidualCentres | RqVae", embeddings: Tensor, size: int, last: Last = "count", taken: Tensor | None = None) -> Tensor:
    """Return codes [items, levels] of `embeddings` [items, D]; codes that other items have are `taken` [others, levels]."""
    codes, free = [], _nearest_free(taken)
    for part in embeddings.float().split(CHUNK):
        found, far = coder.codes(part)
        codes.append(free(found, far) if last == "nearest" else found)
    found = torch.cat(codes)
    if last != "count":
        return found
    before = found.new_zeros(0, found.shape[1]) if taken is None else taken[:, :-1]
    return torch.cat([found, _counted(torch.cat([before, found]))[len(before) :, None] % size], 1)


def collisions(codes: Tensor) -> Collisions:
    """Return the report on `codes` [items, levels]."""
    _, counts = codes.unique(dim=0, return_counts=True)
    used = tuple(len(column.unique()) for column in codes.unbind(1))
    prefixes = tuple(len(codes[:, : level + 1].unique(dim=0)) for level in range(codes.shape[1]))
    return Collisions(len(codes), len(counts), int(counts.max()), used, prefixes)


def residual_kmeans(embeddings: Tensor, levels: int, size: int, seed: int = 0, rounds: int = 30) -> tuple[Tensor, Tensor]:
    """Return codes [items, levels], and the squared distances [items, size] of the last level's residuals to its centres."""
    return ResidualCentres.fitted(embeddings, levels, size, seed, rounds).codes(embeddings)


@dataclass(frozen=True, eq=False)
class ResidualCentres:
    """Codebooks of residual k-means.

    Args:
        books: [levels, size, D] centres.
    """

    books: Tensor

    @staticmethod
    def fitted(embeddings: Tensor, levels: int, size: int, seed: int = 0, rounds: int = 30) -> "ResidualCentres":
        """Return centres of `embeddings` [items, D], level by level."""
        left, books = embeddings.float(), []
        for level in range(levels):
            books.append(kmeans(left, size, seed + level, rounds))
            left = left - books[-1][_distances(left, books[-1]).argmin(1)]
        return ResidualCentres(torch.stack(books))

    def codes(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """As `residual_kmeans` returns them."""
        left, codes = embeddings.float(), []
        distances = left.new_empty(0)
        for book in self.books:
            distances = _distances(left, book)
            codes.append(distances.argmin(1))
            left = left - book[codes[-1]]
        return torch.stack(codes, 1), distances


def _distances(points: Tensor, centres: Tensor) -> Tensor:
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist").square()


class RqVae(nn.Module):
    """Autoencoder whose latent is quantised level by level (RQ-VAE, Lee et al. 2022; for items Rajput et al. 2023)."""

    def __init__(self, width: int, levels: int, size: int, latent: int = 32, hidden: int = 256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.books = nn.Parameter(torch.zeros(levels, size, latent))
        self.mean, self.scale = torch.zeros(width), torch.ones(())

    @staticmethod
    def trained(embeddings: Tensor, levels: int, size: int, seed: int = 0, steps: int = 1500, rows: int = 512) -> "RqVae":
        """Train on `embeddings` [items, D], standardised; codebooks start as k-means of an autoencoder's latents."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            points = embeddings.float()
            model = RqVae(points.shape[1], levels, size)
            model.mean, model.scale = points.mean(0), points.std().clamp_min(1e-6)
            points = (points - model.mean) / model.scale
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
            warm = steps // 4  # an autoencoder first: codes of a moving latent die
            for step in range(steps):
                if step == warm:
                    model.begin(points, seed)
                batch = points[torch.randint(len(points), (min(rows, len(points)),))]
                loss = model.loss(batch) if step >= warm else F.mse_loss(model.decoder(model.encoder(batch)), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model.eval()

    @torch.no_grad()
    def begin(self, points: Tensor, seed: int) -> None:
        """Set the codebooks to the centres of residual k-means."""
        left = self.encoder(points)
        for level, book in enumerate(self.books):
            book.copy_(kmeans(left, len(book), seed + level))
            left = left - book[torch.cdist(left, book).argmin(1)]

    def quantised(self, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cumulative sums of codes [levels, items, latent], the codes [items, levels], and the last level's squared distances
        [items, size].
        """
        left, sums, codes = latent, [], []
        distances = latent.new_empty(0)
        for book in self.books:
            distances = _distances(left, book)
            codes.append(distances.argmin(1))
            sums.append((sums[-1] if sums else 0) + book[codes[-1]])
            left = latent - sums[-1]
        return torch.stack(sums), torch.stack(codes, 1), distances

    def loss(self, points: Tensor) -> Tensor:
        """Reconstruction through the codes (straight through), and every level's codebook and commitment terms."""
        latent = self.encoder(points)
        sums, _, _ = self.quantised(latent.detach())
        through = latent + (sums[-1] - latent).detach()
        whole = latent.expand_as(sums)
        return F.mse_loss(self.decoder(through), points) + F.mse_loss(sums, whole.detach()) + 0.25 * F.mse_loss(whole, sums.detach())

    @torch.no_grad()
    def codes(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """As `residual_kmeans` returns them."""
        _, codes, distances = self.quantised(self.encoder((embeddings - self.mean) / self.scale))
        return codes, distances


def _counted(codes: Tensor) -> Tensor:
    """[items]: how many items before each one have the same codes."""
    _, group = codes.unique(dim=0, return_inverse=True)
    order = torch.argsort(group, stable=True)
    starts = torch.searchsorted(group[order].contiguous(), group[order].contiguous())
    count = torch.empty_like(group)
    count[order] = torch.arange(len(group)) - starts
    return count


def _nearest_free(taken: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Codes [items, levels] with the last level chosen anew: the nearest code that no earlier item with the same first codes has."""
    busy: dict[tuple[int, ...], set[int]] = {}
    for *path, code in [] if taken is None else taken.tolist():
        busy.setdefault(tuple(path), set()).add(code)

    def chosen(codes: Tensor, distances: Tensor) -> Tensor:
        codes = codes.clone()
        for row, (path, order) in enumerate(zip(codes[:, :-1].tolist(), distances.argsort(1).tolist(), strict=True)):
            used = busy.setdefault(tuple(path), set())
            code = next((code for code in order if code not in used), order[0])
            used.add(code)
            codes[row, -1] = code
        return codes

    return chosen


def _check(embeddings: Tensor, method: str, levels: int, size: int, last: str) -> None:
    if embeddings.dim() != 2 or len(embeddings) < 1:
        raise ValueError(f"embeddings have shape {tuple(embeddings.shape)}: give one vector an item, [items, D]")
    if not bool(embeddings.float().isfinite().all()):
        row = int((~embeddings.float().isfinite().all(1)).nonzero()[0, 0])
        raise ValueError(f"the embedding of item {row} (counted from 0) is not finite: leave the item out or mend it")
    if method not in ("kmeans", "rqvae"):
        raise ValueError(f"unknown method {method!r}; valid: kmeans, rqvae")
    if last not in ("count", "nearest", "plain"):
        raise ValueError(f"unknown last {last!r}; valid: count, nearest, plain")
    if levels < 1 + (last == "count") or size < 2:
        raise ValueError(f"levels is {levels} and size is {size}: there must be two codes, and a level before one that counts")
