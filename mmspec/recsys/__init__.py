"""Items out: the K best items of a catalogue for every history, by exact beam search.

>>> from mmspec import recsys
>>> out = recsys.recommend(model, histories, k=10, catalogue=recsys.Catalogue.read("catalogue.parquet"), drafter=small)
"""

from typing import TYPE_CHECKING

from mmspec.utils.lazy import exports

if TYPE_CHECKING:
    from mmspec.recsys.candidates import rank_candidates
    from mmspec.recsys.catalogue import Catalogue
    from mmspec.recsys.cost import CostModel
    from mmspec.recsys.filters.groups import GroupRules
    from mmspec.recsys.generation import Recommendations, recommend
    from mmspec.recsys.methods import METHODS
    from mmspec.recsys.ngram import ItemNGram
    from mmspec.recsys.retriever import Retriever
else:
    _MODULES = {
        "Catalogue": "catalogue",
        "CostModel": "cost",
        "GroupRules": "filters.groups",
        "METHODS": "methods",
        "ItemNGram": "ngram",
        "Recommendations": "generation",
        "Retriever": "retriever",
        "rank_candidates": "candidates",
        "recommend": "generation",
    }
    __getattr__, __dir__ = exports(__name__, _MODULES, {"MODES": "METHODS", "NGram": "ItemNGram"})

__all__ = ["METHODS", "Catalogue", "CostModel", "GroupRules", "ItemNGram", "Recommendations", "Retriever", "rank_candidates", "recommend"]
