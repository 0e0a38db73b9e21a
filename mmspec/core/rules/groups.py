"""Groups of values that sound alike, for acceptance at group level: by the target's embeddings, or in the codec's own space.

Every value t belongs to groups S(t) in equal shares, w(k, t) = 1 / |S(t)|; groups may overlap. What a distribution gives to the groups,
P(k) = sum over t of w(k, t) p(t), is a distribution again. Shares are held sparsely, and no V x V matrix is ever made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.utils.quiet import ignoring

_ENTRIES = 2**24
"""About how many similarities are held at a time (64 MiB)."""


@dataclass(frozen=True, eq=False, repr=False)
class Groups:
    """V values in K groups, K <= V. `shared`: does any value share a group with another? If not, a group says no more than its value."""

    groups: Tensor  # [V, K] sparse CSR: row t holds 1 at each k in S(t)
    members: Tensor  # [K, V] sparse CSR: the same, transposed
    shared: bool

    @staticmethod
    def by_cosine(embeddings: Tensor, theta: float = 0.45, alone: Sequence[int] = ()) -> "Groups":
        """The published groups, one a value: those whose rows of `embeddings` [V, d] have cosine >= `theta` with its own.

        Give ids whose rows were hardly trained (ends, padding) as `alone`: they belong to no group but their own. Rows of zeros do
        so, too, for `theta` above 0. The embeddings of a small model are nearly orthogonal: use the codec's space for those.
        """
        rows = torch.nn.functional.normalize(_points(embeddings).float(), dim=-1)
        return _collected(len(rows), lambda own: rows[own] @ rows.T >= theta, alone, rows.device)

    @staticmethod
    def by_distance(vectors: Tensor, radius: float, alone: Sequence[int] = ()) -> "Groups":
        """One group a value: those at most `radius` from it by L2 between rows of `vectors` [V, d].

        Rows are what a code stands for: codebook entries, k-means centres, or coordinates on the grid for FSQ codecs (radius 1:
        next to it along one axis).
        """
        rows = _points(vectors).double()
        return _collected(len(rows), lambda own: _far(rows, own) <= radius, alone, rows.device)

    @staticmethod
    def nearest(vectors: Tensor, count: int, alone: Sequence[int] = ()) -> "Groups":
        """One group a value: it and the `count` nearest to it by L2 between rows of `vectors` [V, d]; equally near ones by number."""
        rows = _points(vectors).double()
        if not 0 <= count < len(rows):
            raise ValueError(f"count is {count}: a value of {len(rows)} has 0 to {len(rows) - 1} neighbours")

        def near(own: Tensor) -> Tensor:
            far = _far(rows, own).scatter_(1, own[:, None], -1)
            order = far.sort(dim=-1, stable=True).indices[:, : count + 1]
            return torch.zeros_like(far, dtype=torch.bool).scatter_(1, order, True)

        return _collected(len(rows), near, alone, rows.device)

    @staticmethod
    def partition(labels: Tensor) -> "Groups":
        """Groups that do not overlap: value t is in group `labels[t]` [V], numbered from 0."""
        return _grouped(labels.long(), torch.arange(len(labels), device=labels.device), (len(labels), int(labels.max()) + 1))

    @property
    def values(self) -> int:
        return self.groups.shape[0]

    def placed(self, values: Tensor, size: int) -> "Groups":
        """The same groups for a vocabulary of `size` in which code c is the value `values[c]` [V]; all others stand alone."""
        if values.shape != self.groups.shape[:1] or len(values.unique()) < len(values) or int(values.max()) >= size:
            raise ValueError(f"values has shape {tuple(values.shape)}: name one value below {size} for each of the {self.values} codes")
        group, code = self._pairs()
        rest = torch.ones(size, dtype=torch.bool, device=values.device).index_fill_(0, values, False).nonzero()[:, 0]
        own = self.members.shape[0] + torch.arange(len(rest), device=values.device)
        return _grouped(torch.cat([group, own]), torch.cat([values[code], rest]), (size, self.members.shape[0] + len(rest)))

    def to(self, device: torch.device | str) -> "Groups":
        return Groups(self.groups.to(device), self.members.to(device), self.shared)

    def coarse(self, probs: Tensor) -> Tensor:
        """What distributions `probs` [..., V] give to the groups, [..., K]."""
        if probs.shape[-1] != self.values or probs.device != self.groups.device:
            here, there = f"{self.values} values on {self.groups.device}", f"{probs.shape[-1]} values on {probs.device}"
            raise ValueError(
                f"the groups are for {here}, the distributions over {there}: use groups.placed(values, size) or groups.to(device)"
            )
        return _times(self.members, probs / self.sizes())

    def mean(self, amounts: Tensor) -> Tensor:
        """The mean of `amounts` [..., K] over the groups of each value, [..., V]."""
        return _times(self.groups, amounts) / self.sizes()

    def sizes(self) -> Tensor:
        """[V] how many groups each value is in: for groups that are one a value and symmetric, how many values it is grouped with."""
        return self.groups.crow_indices().diff()

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Group and value of every membership."""
        values = torch.arange(self.values, device=self.groups.device)
        return self.groups.col_indices().long(), values.repeat_interleave(self.sizes().long())

    def __repr__(self) -> str:
        return f"Groups({self.values} values, in {self.sizes().double().mean().item():.1f} each)"


def _points(vectors: Tensor) -> Tensor:
    if vectors.dim() != 2 or not len(vectors):
        raise ValueError(f"the vectors have shape {tuple(vectors.shape)}: give one row a value, [V, d]")
    return vectors.detach()


def _far(rows: Tensor, own: Tensor) -> Tensor:
    return torch.cdist(rows[own], rows, compute_mode="donot_use_mm_for_euclid_dist")


def _collected(size: int, alike: Callable[[Tensor], Tensor], alone: Sequence[int], device: torch.device) -> Groups:
    """One group a value from `alike`: chunk of values [n] -> [n, V] bool, a few rows at a time."""
    single = torch.zeros(size, dtype=torch.bool, device=device)
    single[list(alone)] = True
    groups, values = [], []
    for own in torch.arange(size, device=device).split(max(1, _ENTRIES // size)):
        member = alike(own) & ~single & ~single[own][:, None]
        member.scatter_(1, own[:, None], True)  # whatever rounding says
        group, value = member.nonzero(as_tuple=True)
        groups.append(own[group].int())
        values.append(value.int())
    return _grouped(torch.cat(groups).long(), torch.cat(values).long(), (size, size))


def _grouped(group: Tensor, value: Tensor, shape: tuple[int, int]) -> Groups:
    """Groups of the memberships `group`, `value` [M]; `shape` counts values and groups."""
    shared = bool((torch.bincount(group) > 1).any())
    return Groups(_rows(value, group, shape), _rows(group, value, (shape[1], shape[0])), shared)


def _rows(row: Tensor, column: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix of ones at `row`, `column` [M]."""
    order = torch.argsort(row * shape[1] + column)
    ends = torch.nn.functional.pad(torch.bincount(row, minlength=shape[0]).cumsum(0), (1, 0))
    with ignoring("Sparse CSR tensor support is in beta"):
        ones = torch.ones(len(row), device=row.device)
        return torch.sparse_csr_tensor(ends.int(), column[order].int(), ones, shape, check_invariants=False)


def _times(matrix: Tensor, distributions: Tensor) -> Tensor:
    """`matrix` [M, N] applied to each of `distributions` [..., N], [..., M]."""
    flat = distributions.reshape(-1, distributions.shape[-1])
    return (matrix.to(flat.dtype) @ flat.T).T.reshape(*distributions.shape[:-1], -1)
