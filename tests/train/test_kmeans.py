"""K-means: separate blobs apart, no cluster empty, more centres than points no trouble."""

import torch

from mmspec.utils.kmeans import kmeans


def blobs(groups: int = 5, each: int = 20, width: int = 8, spread: float = 0.05) -> torch.Tensor:
    chance = torch.Generator().manual_seed(0)
    centres = torch.randn(groups, width, generator=chance) * 4
    return (centres[:, None] + spread * torch.randn(groups, each, width, generator=chance)).flatten(0, 1)


def test_kmeans_finds_separate_blobs():
    points = blobs()
    for seed in range(5):
        label = torch.cdist(points, kmeans(points, 5, seed)).argmin(1)
        assert all(len(part.unique()) == 1 for part in label.split(20))
        assert len(label.unique()) == 5


def test_kmeans_leaves_no_cluster_empty():
    points = torch.cat([torch.zeros(50, 2), torch.randn(6, 2, generator=torch.Generator().manual_seed(0))])
    label = torch.cdist(points, kmeans(points, 7)).argmin(1)
    assert len(label.unique()) == 7


def test_kmeans_on_fewer_points_than_centres():
    centres = kmeans(torch.eye(3), 8)
    assert centres.shape == (8, 3)
    assert bool(centres.isfinite().all())
