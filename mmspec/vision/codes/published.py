"""Relaxed methods at their published settings, each a name wherever a method is named.

| name | setting | taken from |
|---|---|---|
| lantern-0.1-1000 | LANTERN, delta 0.1, 1000 neighbours | default of its released code (2410.03355) |
| lantern-0.2-1000 | LANTERN, delta 0.2, 1000 neighbours | script of VVS's released code (2511.13587), without what VVS skips |
| lantern++-5-10 | LANTERN++, lambda 5, 10 neighbours | script of the released code (2502.06352) |
| lantern++-10-5 | LANTERN++, lambda 10, 5 neighbours | the same |
| lantern++-20-5 | LANTERN++, lambda 20, 5 neighbours | the same |
| gsd-14 | groups of 14 by rows of the input embedding, gap 0.15, distance 0.5 squared | constants of its released code (2508.07747) |
| gsd-25 | groups of up to 25 codes by the codebook | the paper's size; gap and distance of `gsd` |
| gsd-50 | groups of up to 50 codes by the codebook | the paper's size; gap and distance of `gsd` |
| cool-sd-1.1 | Cool-SD, delta 1.1, nu 0.7 | the paper (2601.09212) |

Rules, trees and windows are otherwise those of `lantern`, `lantern++`, `gsd` and `cool-sd`: corrections are the ordinary residual, clusters
are symmetric, Cool-SD's weights stop at 1. A codebook of fewer codes than neighbours asked for gives all it has.
"""

import torch

from mmspec.core.rules.base import Accept
from mmspec.core.rules.lossy.cool_sd import cool_tree
from mmspec.core.rules.lossy.grouped import Grouped
from mmspec.core.rules.lossy.lantern import lantern_plus_tree, lantern_tree
from mmspec.drafters.jacobi import couplers
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.vision.codes.methods import STATIC_TREE, Method, Rule, neighbours
from mmspec.vision.families.base import ImageModel


def _lantern(delta: float, k: int) -> Method:
    def rule(model: ImageModel) -> Accept:
        table = neighbours(model, k)
        return lantern_tree(table, delta, table.k)

    return Method(shape=ExpandRerank(), accept=rule)


def _lantern_plus(lam: float, k: int) -> Method:
    def rule(model: ImageModel) -> Accept:
        table = neighbours(model, k)
        return lantern_plus_tree(table, lam, table.k)

    return Method(shape=STATIC_TREE, accept=rule)


def _grouped(size: int) -> Rule:
    def rule(model: ImageModel) -> Accept:
        return Grouped(None if model.codebook is None else model.codebook.to(model.model.device), size)

    return rule


def _grouped_by_inputs(model: ImageModel) -> Accept:
    """GSD as released: distances of the target's own input embeddings, squared 0.5 at most."""
    with torch.no_grad():
        rows = model.embed(torch.arange(model.raster.codes, device=model.model.device)[None])[0]
    return Grouped(rows.float(), 14, 0.15, 0.5**0.5)


PUBLISHED: dict[str, Method] = {
    "lantern-0.1-1000": _lantern(0.1, 1000),
    "lantern-0.2-1000": _lantern(0.2, 1000),
    "lantern++-5-10": _lantern_plus(5.0, 10),
    "lantern++-10-5": _lantern_plus(10.0, 5),
    "lantern++-20-5": _lantern_plus(20.0, 5),
    "gsd-14": Method(couple=couplers.fresh, accept=_grouped_by_inputs),
    "gsd-25": Method(couple=couplers.fresh, accept=_grouped(25)),
    "gsd-50": Method(couple=couplers.fresh, accept=_grouped(50)),
    "cool-sd-1.1": Method(shape=STATIC_TREE, accept=cool_tree(1.1, 0.7)),
}
"""Settings of relaxed methods by name."""
