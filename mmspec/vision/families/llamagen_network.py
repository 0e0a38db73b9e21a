"""LlamaGen (Sun et al. 2024, arXiv 2406.06525): a Llama that generates picture codes in raster order after a class or a caption.

Parameters have the names of the published checkpoints, which load without a map. transformers has no such class.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.vision.families.llamagen_layers import CaptionEmbedding, ClassEmbedding, DecoderBlock, LlamaGenConfig, rotary


class LlamaGen(PreTrainedModel):
    """LlamaGen backbone (Sun et al. 2024): hidden states from embeddings; `output` maps them to logits over the codes.

    Args:
        config: the sizes.
    """

    config_class = LlamaGenConfig  # pyright: ignore[reportAssignmentType]
    config: LlamaGenConfig
    _supports_sdpa = True
    freqs: Tensor

    def __init__(self, config: LlamaGenConfig):
        super().__init__(config)
        self.cls_embedding = ClassEmbedding(config) if config.condition == "class" else CaptionEmbedding(config)
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(DecoderBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of the codes.

        Returns:
            The module.
        """
        return self.tok_embeddings

    def get_output_embeddings(self) -> nn.Module:
        """Return the head over the codes.

        Returns:
            The module.
        """
        return self.output

    def get_decoder(self) -> "LlamaGen":
        """Return the decoder.

        Returns:
            The model itself.
        """
        return self

    def forward(self, embeds: Tensor, cells: Tensor, mask: Tensor | None = None, cache: Any = None) -> tuple[Tensor]:
        """Run the backbone.

        Args:
            embeds: [R, M, D] embeddings.
            cells: LongTensor [R, M], places in raster order; -1 for the prefix.
            mask: bool [R, 1, M, S]; causal by default.
            cache: the slot cache's view.

        Returns:
            The last hidden states [R, M, D], in a tuple.
        """
        rope = rotary(cells, self.config)
        x = self.dropout(embeds)
        for layer in self.layers:
            x = layer(x, rope, mask, cache)
        return (self.norm(x),)

    def write(self, prefix: Tensor, codes: Tensor, real: Tensor | None = None) -> Tensor:
        """Compute the logits of whole pictures, for training.

        Args:
            prefix: [R, P, D] embedded class or caption.
            codes: LongTensor [R, T].
            real: bool [R, P], True at prefix positions that are not padding; all by default.

        Returns:
            Logits [R, T, V]; position t is the prediction of code t.
        """
        return self.output(self.states(prefix, codes, real))

    def states(self, prefix: Tensor, codes: Tensor, real: Tensor | None = None) -> Tensor:
        """Compute the last hidden states of whole pictures, for training.

        Args:
            prefix: [R, P, D] embedded class or caption.
            codes: LongTensor [R, T].
            real: bool [R, P], True at prefix positions that are not padding; all by default.

        Returns:
            States [R, T, D]; position t predicts code t.
        """
        size, length = prefix.shape[1], prefix.shape[1] + codes.shape[1] - 1
        embeds = torch.cat([prefix, self.tok_embeddings(codes[:, :-1])], 1)
        cells = (torch.arange(length, device=codes.device) - size).clamp(min=-1).expand(len(codes), -1)
        mask = None
        if real is not None:
            seen = torch.cat([real, real.new_ones(len(real), codes.shape[1] - 1)], 1)[:, None, None]
            causal = torch.ones(length, length, dtype=torch.bool, device=codes.device).tril()
            mask = (seen & causal) | torch.eye(length, dtype=torch.bool, device=codes.device)  # a row of the mask needs one True
        return self(embeds, cells, mask)[0][:, size - 1 :]


class TrainedTogether(nn.Module):
    """Module for training: a target and, for captions, the text encoder trained with it."""

    def __init__(self, target: LlamaGen, encoder: Any = None, tokenizer: Any = None):
        super().__init__()
        self.target, self.encoder, self.tokenizer = target, encoder, tokenizer

    def forward(self, codes: Tensor, conditions: Sequence[Any], dropped: Tensor) -> Tensor:
        """Return nats a code [B, T] of `codes` [B, T] given class numbers or captions; rows in `dropped` [B] bool are unconditional."""
        config, real = self.target.config, None
        embedding: Any = self.target.cls_embedding
        if self.encoder is None:
            prefix = embedding(torch.where(dropped, config.classes, torch.tensor(conditions, device=dropped.device)))
        else:
            options = {"padding": "max_length", "truncation": True, "max_length": config.prefix, "return_tensors": "pt"}
            found = self.tokenizer(list(conditions), **options).to(dropped.device)
            features = self.encoder(input_ids=found["input_ids"], attention_mask=found["attention_mask"]).last_hidden_state
            prefix = embedding(torch.where(dropped[:, None, None], embedding.uncond_embedding, features))
            real = found["attention_mask"].bool()
        logits = self.target.write(prefix, codes, real)
        return F.cross_entropy(logits.float().transpose(1, 2), codes, reduction="none")


def load_published(path: str | Path, config: LlamaGenConfig) -> LlamaGen:
    """Load a published checkpoint: a `.pt` with weights under "model", "module" or "state_dict", or a mapping of tensors.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or of another shape.
    """
    found: Any = torch.load(path, map_location="cpu", weights_only=True)
    for name in ("model", "module", "state_dict"):
        found = found[name] if isinstance(found.get(name), Mapping) else found
    model = LlamaGen(config)
    wanted = model.state_dict()
    for name in {**wanted, **found}:
        shapes = [tuple(state[name].shape) if name in state else "missing" for state in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{path}: tensor {name} is {shapes[0]} in the file and {shapes[1]} in this configuration; check its sizes")
    model.load_state_dict(found)
    return model.eval()
