"""The output head of a model with a large vocabulary, of which a search needs a catalogue's tokens only.

Scores are normalised over the whole vocabulary, as transformers does, so the product is that of all columns; it is made for a part of the
rows at a time, and kept are the logits of the catalogue's tokens and the log-sum-exp of the others.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mmspec.models.compat.models import execution_device
from mmspec.models.compat.output_head import head_product

LEAST_VOCABULARY = 16_384
"""Smaller vocabularies are kept whole."""
_PART = 2**24  # logits that are held at a time
_CLOSE = 1e-4
_proved: "WeakKeyDictionary[Any, bool]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class CatalogueHead:
    """The head of a model for one set of tokens.

    Args:
        tokens: the tokens [C], ascending, on the model's device.
    """

    tokens: Tensor

    @staticmethod
    def of(model: Any, copy: Any, tokens: Tensor) -> "CatalogueHead | None":
        """Make the head where it saves memory and the model takes it.

        Args:
            model: a transformers model.
            copy: a copy of it, whose modules may be changed for the length of a forward.
            tokens: the tokens of a catalogue, ascending.

        Returns:
            The head; None for a vocabulary below `LEAST_VOCABULARY` or four times the tokens, and for a model that does more to its logits
            than a linear head does.
        """
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        if type(head) is not nn.Linear or head.weight.is_meta or head.out_features < max(LEAST_VOCABULARY, 4 * len(tokens)):
            return None
        found = CatalogueHead(tokens.to(execution_device(model)))
        if model not in _proved:
            _proved[model] = found._proves(copy)
        return found if _proved[model] else None

    def changes(self, model: Any) -> tuple[tuple[nn.Module, str, Any], ...]:
        """Return the changes for `models.changed.replaced`.

        Args:
            model: a copy of a model.

        Returns:
            (module, name, value): the output head then returns [..., C + 1].
        """
        head = model.get_output_embeddings()
        return ((head, "forward", lambda hidden: self.product(head, hidden)),)

    def product(self, head: nn.Linear, hidden: Tensor) -> Tensor:
        """Compute the logits that are kept.

        Args:
            head: the model's head, to V values.
            hidden: last hidden states [..., H].

        Returns:
            Float [..., C + 1]: logits of the tokens, and the log-sum-exp of the others.
        """
        flat = hidden.reshape(-1, hidden.shape[-1])
        rows = max(1, _PART // head.out_features)
        found = flat.new_empty(len(flat), len(self.tokens) + 1, dtype=torch.float32)
        for first in range(0, len(flat), rows):
            part = flat[first : first + rows]
            logits = head_product(part, head.weight) if head.bias is None else nn.functional.linear(part, head.weight, head.bias)
            logits = logits.float()
            found[first : first + rows, :-1] = logits[:, self.tokens]
            logits[:, self.tokens] = -torch.inf
            found[first : first + rows, -1] = logits.logsumexp(-1)
        return found.view(*hidden.shape[:-1], -1)

    @torch.no_grad()
    def _proves(self, copy: Any) -> bool:
        """Does the model, with this head, score two positions as it does with its own?"""
        ids = self.tokens[:2].expand(1, -1)
        given = {"input_ids": ids} | ({"decoder_input_ids": ids} if copy.config.is_encoder_decoder else {})
        whole = copy(**given, use_cache=False).logits.float().log_softmax(-1)[..., self.tokens]
        ((head, name, product),) = self.changes(copy)
        try:
            vars(head)[name] = product
            kept = copy(**given, use_cache=False).logits
        except (RuntimeError, IndexError, ValueError):
            return False
        finally:
            vars(head).pop(name)
        if kept.shape != (*whole.shape[:-1], len(self.tokens) + 1):
            return False
        near = (kept.float().log_softmax(-1)[..., :-1] - whole).abs().amax()
        return bool(near < (_CLOSE if copy.dtype == torch.float32 else 0.05))
