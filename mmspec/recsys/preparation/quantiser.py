"""A fitted quantiser of items on disk: what gives semantic ids to items, and to those that come later."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from mmspec.recsys.preparation.items import ItemTable
from mmspec.recsys.preparation.text_embeddings import TextEmbedder
from mmspec.recsys.semantic_ids import Last, Method, ResidualCentres, RqVae, assigned, fitted
from mmspec.utils.files import whole

_KEY = "mmspec.quantiser"


@dataclass(frozen=True, kw_only=True)
class QuantiserSettings:
    """How semantic ids are learnt.

    Args:
        method: "kmeans" or "rqvae".
        levels: codes an item.
        size: codes a level.
        last: how the last code keeps items apart; see `mmspec.recsys.semantic_ids.make`.
        text_width: numbers of a text's embedding.
        event_width: numbers of an embedding from events.
        seed: seed of the quantiser.
    """

    method: Method = "kmeans"
    levels: int = 4
    size: int = 256
    last: Last = "count"
    text_width: int = 128
    event_width: int = 64
    seed: int = 0


@dataclass(frozen=True, eq=False)
class ItemQuantiser:
    """Codebooks, and for items with texts what makes their embeddings.

    Args:
        coder: the codebooks.
        size: codes a level.
        last: how the last code keeps items apart.
        texts: what embeds texts, or None for items without.
        near: numbers of an embedding from events; 0 where events were not read.
    """

    coder: ResidualCentres | RqVae
    size: int
    last: Last
    texts: TextEmbedder | None = None
    near: int = 0

    @staticmethod
    def fit(items: ItemTable, settings: QuantiserSettings) -> "ItemQuantiser":
        """Learn codebooks.

        Args:
            items: items with embeddings, texts or embeddings from events.
            settings: how.

        Returns:
            The quantiser.

        Raises:
            ValueError: for embeddings and settings that cannot be used.
            ModuleNotFoundError: for texts without scikit-learn.
        """
        texts = TextEmbedder.fit(items.text, settings.text_width, settings.seed) if items.text is not None else None
        near = 0 if items.near is None else items.near.shape[1]
        vectors = _vectors(items, texts, near)
        coder = fitted(vectors, settings.method, settings.levels, settings.size, settings.last, settings.seed)
        return ItemQuantiser(coder, settings.size, settings.last, texts, near)

    def codes(self, items: ItemTable, taken: Tensor | None = None) -> Tensor:
        """Give semantic ids to items, those of the fit or new ones.

        Args:
            items: items with what the quantiser was fitted to: embeddings of the same width, or texts. Without embeddings from events they
                are coded as items beside no other.
            taken: LongTensor [others, L] codes of items that have theirs already.

        Returns:
            LongTensor [items, L].

        Raises:
            ValueError: for items of another kind.
        """
        vectors = _vectors(items, self.texts, self.near)
        width = self.coder.books.shape[2] if isinstance(self.coder, ResidualCentres) else len(self.coder.mean)
        if vectors.shape[1] != width:
            have = vectors.shape[1] - self.near
            raise ValueError(f"the embeddings have {have} numbers, and the quantiser was fitted to {width - self.near}")
        if not bool(vectors.isfinite().all()):
            row = int((~vectors.isfinite().all(1)).nonzero()[0, 0])
            raise ValueError(f"the embedding of item {items.items[row]!r} is not finite: leave the item out or mend it")
        return assigned(self.coder, vectors, self.size, self.last, taken)

    def save(self, path: Path) -> None:
        """Write a safetensors file, atomically."""
        from safetensors.torch import save

        vae = isinstance(self.coder, RqVae)
        tensors = {f"coder.{name}": value for name, value in _coder_state(self.coder).items()}
        told = {"method": "rqvae" if vae else "kmeans", "size": self.size, "last": self.last, "near": self.near}
        text: dict[str, str] = {}
        if self.texts is not None:
            text, more = self.texts.state()
            tensors |= {f"text.{name}": value for name, value in more.items()}
        with whole(path, binary=True) as file:
            file.write(save({name: value.detach().contiguous() for name, value in tensors.items()}, {_KEY: json.dumps(told), **text}))

    @staticmethod
    def load(path: Path) -> "ItemQuantiser":
        """Read what `save` wrote.

        Args:
            path: the file.

        Returns:
            The quantiser.

        Raises:
            ValueError: for a file that is missing or holds something else.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                text: dict[str, str] = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
            told = json.loads(text[_KEY])
            coder, embedder = (
                {name.removeprefix(part): tensor for name, tensor in tensors.items() if name.startswith(part)}
                for part in ("coder.", "text.")
            )
            texts = TextEmbedder.restored(text, embedder) if embedder else None
            return ItemQuantiser(_coder(told["method"], coder), told["size"], told["last"], texts, told.get("near", 0))
        except FileNotFoundError:
            raise ValueError(f"{path} does not exist: it is written where semantic ids are learnt, not where codes are given") from None
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} holds no quantiser: {str(error).splitlines()[0]}") from None


def _vectors(items: ItemTable, texts: TextEmbedder | None, near: int) -> Tensor:
    """What is quantised, [items, D]. Beside embeddings from events, of length 1 or 0, embeddings get length 1, too."""
    parts = []
    if texts is not None and items.text is not None:
        parts.append(texts.embeddings(items.text))
    elif texts is None and items.embedding is not None:
        parts.append(F.normalize(items.embedding.float(), dim=1) if near else items.embedding.float())
    if near:
        parts.append(items.near if items.near is not None else torch.zeros(len(items), near))
    if parts and (texts is None or items.text is not None):
        return torch.cat(parts, 1)
    needed = "embeddings" if texts is None else "texts"
    raise ValueError(f"the quantiser was fitted to {needed}, and these items have none: give the columns that the first items had")


def _coder_state(coder: ResidualCentres | RqVae) -> dict[str, Tensor]:
    if isinstance(coder, ResidualCentres):
        return {"books": coder.books}
    return coder.state_dict() | {"mean": coder.mean, "scale": coder.scale}


def _coder(method: str, state: dict[str, Tensor]) -> ResidualCentres | RqVae:
    if method == "kmeans":
        return ResidualCentres(state["books"])
    levels, size, latent = state["books"].shape
    hidden, width = state["encoder.0.weight"].shape
    coder = RqVae(width, levels, size, latent, hidden)
    coder.mean, coder.scale = state.pop("mean"), state.pop("scale")
    coder.load_state_dict(state)
    return coder.eval()
