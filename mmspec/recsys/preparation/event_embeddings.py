"""Embeddings of items from events alone: positive pointwise mutual information of items near each other, reduced by a truncated SVD.

Items that the same users choose one after another get similar vectors (Levy & Goldberg 2014). scikit-learn does the SVD; it comes with
`pip install 'mmspec[recsys]'`.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SMOOTHING = 0.75  # power of an item's frequency as context, so that rare items weigh less (Levy, Goldberg & Dagan 2015)
_NEEDS = "semantic ids from events need scikit-learn: pip install 'mmspec[recsys]'"


def event_embeddings(
    item: NDArray[np.int64], lengths: NDArray[np.int64], items: int, *, width: int = 64, within: int = 5, seed: int = 0
) -> Tensor:
    """Embed items by the items near them in histories.

    Args:
        item: [E] number of each event's item: the histories one after another, each oldest first.
        lengths: [U] events of each history.
        items: number of items.
        width: numbers an embedding; fewer where fewer items have events.
        within: how many places apart two items of a history count; those n places apart count 1 / n.
        seed: seed of the SVD.

    Returns:
        Float Tensor [items, D] of length 1, or 0 for items beside no other one.

    Raises:
        ModuleNotFoundError: without scikit-learn.
        ValueError: where no history holds two different items.
    """
    try:
        from sklearn.decomposition import TruncatedSVD
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_NEEDS) from error
    counts = _counted(item, lengths, items, within)
    there = np.flatnonzero(counts.sum(1).A1)
    if len(there) < 2:
        raise ValueError("no history holds two different items: semantic ids cannot be learnt from these events")
    information = _information(counts[there][:, there])
    svd = TruncatedSVD(min(width, len(there) - 1), random_state=seed)
    found = svd.fit_transform(information) / np.sqrt(np.maximum(svd.singular_values_, 1e-9))  # U sqrt(S)
    vectors = np.zeros((items, found.shape[1]), np.float32)
    vectors[there] = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    return torch.from_numpy(vectors)


def _counted(item: NDArray[np.int64], lengths: NDArray[np.int64], items: int, within: int) -> Any:
    """How often two items are near each other, nearer ones with more weight: a symmetric sparse matrix without a diagonal."""
    import scipy.sparse

    user = np.repeat(np.arange(len(lengths)), lengths)
    counts: Any = scipy.sparse.csr_matrix((items, items))
    for gap in range(1, within + 1):
        same = (user[:-gap] == user[gap:]) & (item[:-gap] != item[gap:])
        pairs = item[:-gap][same], item[gap:][same]
        counts = counts + scipy.sparse.csr_matrix((np.full(int(same.sum()), 1 / gap), pairs), (items, items))
    return counts + counts.T


def _information(counts: Any) -> Any:
    """Positive pointwise mutual information of a sparse matrix of counts."""
    total = counts.sum(1).A1
    context = total**SMOOTHING
    found = counts.tocoo()
    ratio = found.data * context.sum() / (total[found.row] * context[found.col])
    found.data = np.maximum(np.log(ratio), 0)
    return found.tocsr()
