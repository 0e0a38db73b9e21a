"""Groups of similar values, for acceptance at group level: by the target's embeddings, or in the codec's own space.

Value t belongs to groups S(t) in equal shares, w(k, t) = 1 / |S(t)|; groups may overlap. The mass of the groups under a distribution,
P(k) = sum over t of w(k, t) p(t), is a distribution again. Shares are held sparsely, and no V x V matrix is made.
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
    """V values in K groups, K <= V.

    Args:
        groups: sparse CSR [V, K]; row t holds 1 at each k in S(t).
        members: sparse CSR [K, V], the transpose.
        shared: True if some value shares a group with another.
    """

    groups: Tensor
    members: Tensor
    shared: bool

    @staticmethod
    def by_cosine(embeddings: Tensor, theta: float = 0.45, alone: Sequence[int] = ()) -> "Groups":
        """Make the published groups, one a value: the values whose embeddings are similar to its own.

        The embeddings of a small model are nearly orthogonal: use the codec's space for those.

        Args:
            embeddings: [V, d].
            theta: least cosine similarity.
            alone: ids whose rows were hardly trained (ends, padding); they are in no group but their own. With `theta` above 0 so are rows
                of zeros.

        Returns:
            V groups.
        """
        rows = torch.nn.functional.normalize(_points(embeddings).float(), dim=-1)
        return _collected(len(rows), lambda own: rows[own] @ rows.T >= theta, alone, rows.device)

    @staticmethod
    def by_distance(vectors: Tensor, radius: float, alone: Sequence[int] = ()) -> "Groups":
        """Make one group a value: the values near it by L2 distance.

        Args:
            vectors: what each code stands for [V, d]: codebook entries, k-means centres, or grid coordinates of FSQ codecs (radius 1:
                neighbours along one axis).
            radius: largest distance.
            alone: ids that are in no group but their own.

        Returns:
            V groups.
        """
        rows = _points(vectors).double()
        return _collected(len(rows), lambda own: _far(rows, own) <= radius, alone, rows.device)

    @staticmethod
    def nearest(vectors: Tensor, count: int, alone: Sequence[int] = ()) -> "Groups":
        """Make one group a value: itself and its nearest neighbours by L2 distance; equal distances by number.

        Args:
            vectors: [V, d].
            count: neighbours a value.
            alone: ids that are in no group but their own.

        Returns:
            V groups.

        Raises:
            ValueError: for a count out of range.
        """
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
        """Make groups that do not overlap.

        Args:
            labels: group of each value [V], numbered from 0.

        Returns:
            The groups.
        """
        return _grouped(labels.long(), torch.arange(len(labels), device=labels.device), (len(labels), int(labels.max()) + 1))

    @property
    def values(self) -> int:
        """Number of values V."""
        return self.groups.shape[0]

    def placed(self, values: Tensor, size: int) -> "Groups":
        """Renumber the values for a vocabulary that contains them; all other ids stand alone.

        Args:
            values: id of each code [V].
            size: size of the vocabulary.

        Returns:
            Groups over `size` values.

        Raises:
            ValueError: unless `values` names one id below `size` for each code.
        """
        if values.shape != self.groups.shape[:1] or len(values.unique()) < len(values) or int(values.max()) >= size:
            raise ValueError(f"values has shape {tuple(values.shape)}: name one value below {size} for each of the {self.values} codes")
        group, code = self._pairs()
        rest = torch.ones(size, dtype=torch.bool, device=values.device).index_fill_(0, values, False).nonzero()[:, 0]
        own = self.members.shape[0] + torch.arange(len(rest), device=values.device)
        return _grouped(torch.cat([group, own]), torch.cat([values[code], rest]), (size, self.members.shape[0] + len(rest)))

    def to(self, device: torch.device | str) -> "Groups":
        """Move the groups to a device.

        Args:
            device: a torch device.

        Returns:
            New groups.
        """
        return Groups(self.groups.to(device), self.members.to(device), self.shared)

    def coarse(self, probs: Tensor) -> Tensor:
        """Sum distributions over the groups.

        Args:
            probs: probabilities [..., V].

        Returns:
            Probabilities of the groups [..., K].

        Raises:
            ValueError: for another number of values, or another device.
        """
        if probs.shape[-1] != self.values or probs.device != self.groups.device:
            here, there = f"{self.values} values on {self.groups.device}", f"{probs.shape[-1]} values on {probs.device}"
            raise ValueError(
                f"the groups are for {here}, the distributions over {there}: use groups.placed(values, size) or groups.to(device)"
            )
        return _times(self.members, probs / self.sizes())

    def mean(self, amounts: Tensor) -> Tensor:
        """Average amounts over the groups of each value.

        Args:
            amounts: [..., K].

        Returns:
            [..., V].
        """
        return _times(self.groups, amounts) / self.sizes()

    def sizes(self) -> Tensor:
        """Count the groups each value is in; for symmetric groups, one a value, also the size of its own group.

        Returns:
            [V].
        """
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
        member.scatter_(1, own[:, None], True)  # despite rounding
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
