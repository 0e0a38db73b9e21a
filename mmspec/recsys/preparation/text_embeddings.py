"""Embeddings of item texts: TF-IDF of words and word pairs, reduced by a truncated SVD (latent semantic analysis, Deerwester et al. 1990).

scikit-learn does both; it comes with `pip install 'mmspec[recsys]'`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

WORDS = 50_000  # most frequent words and pairs that are kept
_NEEDS = "texts need scikit-learn: pip install 'mmspec[recsys]', or give a column of embeddings or codes"


@dataclass(frozen=True, eq=False)
class TextEmbedder:
    """A fitted TF-IDF and SVD.

    Args:
        vocabulary: words and pairs, in the order of their columns.
        idf: [words] inverse document frequencies.
        components: [D, words] of the SVD.
    """

    vocabulary: tuple[str, ...]
    idf: Tensor
    components: Tensor

    @staticmethod
    def fit(texts: Sequence[str], width: int = 128, seed: int = 0) -> "TextEmbedder":
        """Fit to `texts`.

        Args:
            texts: a text an item.
            width: numbers an embedding; fewer where there are fewer words or texts.
            seed: seed of the SVD.

        Returns:
            The embedder.

        Raises:
            ModuleNotFoundError: without scikit-learn.
            ValueError: for texts without a word.
        """
        TruncatedSVD, _ = _library()
        vectoriser = _vectoriser()
        try:
            matrix = vectoriser.fit_transform(texts)
        except ValueError as error:
            raise ValueError(f"the items' texts cannot be used: {error}") from None
        words = sorted(vectoriser.vocabulary_, key=vectoriser.vocabulary_.__getitem__)
        most = min(width, matrix.shape[1] - 1, matrix.shape[0] - 1)
        if most < 1:
            raise ValueError(f"the texts of {len(texts)} items hold {len(words)} words: too few for an embedding")
        svd = TruncatedSVD(most, random_state=seed).fit(matrix)
        return TextEmbedder(tuple(words), _tensor(vectoriser.idf_), _tensor(svd.components_))

    def embeddings(self, texts: Sequence[str]) -> Tensor:
        """Embed `texts`.

        Args:
            texts: a text an item; words that `fit` did not see do not count.

        Returns:
            Float Tensor [texts, D] of length 1, or 0 for texts without a known word.
        """
        vectoriser = _vectoriser(vocabulary={word: place for place, word in enumerate(self.vocabulary)})
        vectoriser.idf_ = self.idf.double().numpy()
        found = _tensor(vectoriser.transform(texts) @ self.components.double().numpy().T)
        return found / found.norm(dim=1, keepdim=True).clamp_min(1e-9)

    def state(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """Return what `restored` needs: text, and tensors."""
        return {"vocabulary": json.dumps(self.vocabulary)}, {"idf": self.idf, "components": self.components}

    @staticmethod
    def restored(text: dict[str, str], tensors: dict[str, Tensor]) -> "TextEmbedder":
        """Rebuild the object from its `state`."""
        return TextEmbedder(tuple(json.loads(text["vocabulary"])), tensors["idf"], tensors["components"])


def _library() -> tuple[Any, Any]:
    try:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_NEEDS) from error
    return TruncatedSVD, TfidfVectorizer


def _vectoriser(**options: Any) -> Any:
    return _library()[1](sublinear_tf=True, ngram_range=(1, 2), max_features=None if options else WORDS, **options)


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
