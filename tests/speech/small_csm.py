"""Small random CSMs with a Mimi of 16 samples a frame, and the distributions of their first frames written out."""

from typing import Any

import torch
from torch import Tensor
from transformers import CsmConfig, CsmForConditionalGeneration

from mmspec.core.processors.pipeline import Pipeline

TEXT, SOUND, SOUND_END, FRAME = 40, 38, 39, 16
"""Text ids, those that stand for a frame of sound and for its end, and samples a frame."""


def csm(books: int = 4, size: int = 16, seed: int = 0, layers: int = 2, width: int = 32, gain: float = 6.0, **codec: Any) -> Any:
    """Sharp enough that greedy decoding has no ties."""
    torch.manual_seed(seed)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    mimi = {
        "model_type": "mimi",
        "sampling_rate": 1600,
        "hidden_size": 16,
        "num_filters": 4,
        "upsampling_ratios": [2, 2, 2],
        "codebook_size": size,
        "codebook_dim": 8,
        "num_quantizers": books,
        "vector_quantization_hidden_dimension": 8,
        "upsample_groups": 16,
        "num_hidden_layers": 1,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 20,
    } | codec
    depth = {
        "num_codebooks": books,
        "backbone_hidden_size": width,
        "vocab_size": size,
        "hidden_size": 24,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": books + 1,
    }
    config = CsmConfig(
        num_codebooks=books,
        vocab_size=size,
        text_vocab_size=TEXT,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=layers,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        codebook_pad_token_id=size - 1,
        codebook_eos_token_id=0,
        audio_token_id=SOUND,
        audio_eos_token_id=SOUND_END,
        depth_decoder_config=depth,
        codec_config=mimi,
        **heads,
    )
    model = CsmForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():
        if not name.startswith("codec_model"):
            parameter.data.mul_(gain if parameter.dim() > 1 else 1)
    return model


def prompts(count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    """Of 7, 6, 5, ... ids."""
    torch.manual_seed(seed)
    return [{"input_ids": torch.randint(2, SOUND, (1, 7 - row % 5))} for row in range(count)]


@torch.no_grad()
def frame_distribution(model: Any, ids: Tensor, before: list[list[int]], first: Pipeline, behind: Pipeline) -> Tensor:
    """P of every frame, [V] * K, after `before`, by full forwards of the class's own parts, one prefix at a time."""
    backbone, size, books = model.backbone_model, model.config.vocab_size, model.config.num_codebooks
    embeds = model.embed_text_tokens(ids)
    if before:
        embeds = torch.cat([embeds, backbone.embed_tokens(torch.tensor([before]))], 1)
    hidden = backbone(inputs_embeds=embeds, use_cache=False).last_hidden_state[:, -1]
    probs = first(model.lm_head(hidden)[:, None], None)[0, 0].softmax(-1)  # type: ignore[arg-type]
    for _ in range(1, books):
        prefixes = torch.cartesian_prod(*[torch.arange(size)] * probs.dim()).view(-1, probs.dim())
        told = torch.cat([torch.zeros_like(prefixes[:, :1]), prefixes], 1)
        out = model.depth_decoder(told, backbone_last_hidden_state=hidden.expand(len(told), -1), use_cache=False, logits_to_keep=1)
        last = behind(out.logits, None)[:, 0].softmax(-1)  # type: ignore[arg-type]
        probs = probs[..., None] * last.view(*probs.shape, size)
    return probs
