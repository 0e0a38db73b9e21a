"""Qwen3-TTS's networks: a talker that writes code 0 of every frame, and a code predictor that writes the codes behind it.

Both are Qwen3 without a text head: positions of text and of codes are one line, so that the talker's rotary embeddings by section are the
plain ones.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
_FREE = ("rms_norm_eps", "hidden_act", "max_position_embeddings", "attention_bias")
_OWN = {
    "talker.model.codec_embedding.": "talker.embed_tokens.",
    "talker.model.text_embedding.": "text_embedding.",
    "talker.model.": "talker.",
    "talker.text_projection.": "text_projection.",
    "talker.codec_head.": "code_head.",
    "talker.code_predictor.model.codec_embedding.": "predictor_embeddings.",
    "talker.code_predictor.model.": "predictor.",
    "talker.code_predictor.lm_head.": "predictor_heads.",
    "talker.code_predictor.small_to_mtp_projection.": "narrowing.",
    "speaker_encoder.": "speaker_encoder.",
}
"""Beginnings of published names, and what they are here."""


class Qwen3TTSNetwork(nn.Module):
    """The networks of a Qwen3-TTS.

    Args:
        config: the published `config.json`.

    Raises:
        ValueError: for a config that lacks a size, or asks for what the published models have not.
    """

    def __init__(self, config: Mapping[str, Any]):
        super().__init__()
        told = config.get("talker_config") or {}
        behind = told.get("code_predictor_config") or {}
        self.talker, self.predictor = _stack(told, "talker_config"), _stack(behind, "code_predictor_config")
        self.predictor.embed_tokens = None
        books, width = _size(told, "talker_config", "num_code_groups"), self.talker.config.hidden_size
        text = _size(told, "talker_config", "text_hidden_size")
        narrow, values = self.predictor.config.hidden_size, self.predictor.config.vocab_size
        if values > self.talker.config.vocab_size:
            raise ValueError(f"the code predictor has {values} values and the talker {self.talker.config.vocab_size}: expected no more")
        self.text_embedding = nn.Embedding(_size(told, "talker_config", "text_vocab_size"), text)
        self.text_projection = Resize(text, width, told.get("hidden_act", "silu"))
        self.code_head = nn.Linear(width, self.talker.config.vocab_size, bias=False)
        self.predictor_embeddings = nn.ModuleList(nn.Embedding(values, width) for _ in range(books - 1))
        self.predictor_heads = nn.ModuleList(nn.Linear(narrow, values, bias=False) for _ in range(books - 1))
        self.narrowing = nn.Linear(width, narrow) if narrow != width else nn.Identity()
        self.speaker_encoder = None
        if config.get("tts_model_type") == "base":
            from mmspec.models.compat.qwen_tts import speaker_encoder

            self.speaker_encoder = speaker_encoder(config.get("speaker_encoder_config") or {})

    @property
    def config(self) -> Any:
        """The talker's config."""
        return self.talker.config

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.code_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return self.code_head.weight.dtype

    @property
    def books(self) -> int:
        """Codes of a frame."""
        return len(self.predictor_heads) + 1

    def text(self, ids: Any) -> Tensor:
        """Embed ids of text [T] as the talker reads them, [T, D]."""
        return self.text_projection(self.text_embedding(torch.as_tensor(ids, dtype=torch.long, device=self.device)))

    def code(self, ids: Any) -> Tensor:
        """Embed values of code 0 [T], such as controls, [T, D]."""
        return self.talker.embed_tokens(torch.as_tensor(ids, dtype=torch.long, device=self.device))

    def book(self, codes: Tensor, book: int) -> Tensor:
        """Embed codes of one book, of any shape, in the talker's width."""
        if book == 0:
            return self.talker.embed_tokens(codes)
        return self.predictor_embeddings[book - 1](codes.clamp(max=self.predictor.config.vocab_size - 1))

    def frames(self, codes: Tensor) -> Tensor:
        """Embed frames [..., K]: the sum over their codes, [..., D]."""
        return sum((self.book(codes[..., book], book) for book in range(1, self.books)), self.book(codes[..., 0], 0))


class Resize(nn.Module):
    """Two layers between the width of text and the talker's."""

    def __init__(self, text: int, width: int, activation: str):
        super().__init__()
        from transformers.activations import ACT2FN

        self.linear_fc1, self.linear_fc2 = nn.Linear(text, text), nn.Linear(text, width)
        self.act_fn = ACT2FN[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """Map `hidden` [..., text] to [..., width]."""
        return self.linear_fc2(self.act_fn(self.linear_fc1(hidden)))


def qwen3_tts_weights(published: Mapping[str, Tensor], network: Qwen3TTSNetwork) -> dict[str, Tensor]:
    """Return published tensors under the names of `Qwen3TTSNetwork`.

    Args:
        published: tensors by their published names.
        network: the network that they are for.

    Returns:
        Tensors by the network's names.

    Raises:
        ValueError: naming the first tensor that is missing, unknown or of another shape.
    """
    found, own = {}, network.state_dict()
    for name, tensor in published.items():
        start = max((start for start in _OWN if name.startswith(start)), key=len, default=None)
        if start is None:
            raise ValueError(f"weight {name} is none of Qwen3-TTS: expected talker and speaker_encoder")
        found[_OWN[start] + name[len(start) :]] = tensor
    for name in sorted(set(found) ^ set(own)):
        raise ValueError(f"weight {name} is {'missing' if name in own else 'unknown'}: the checkpoint and its config.json differ")
    for name, tensor in found.items():
        if tensor.shape != own[name].shape:
            raise ValueError(f"weight {name} has shape {list(tensor.shape)}, and config.json asks for {list(own[name].shape)}")
    return found


def _stack(told: Mapping[str, Any], where: str) -> Any:
    """A Qwen3 by its published config. ValueError for sliding windows and scaled positions."""
    import transformers as hf

    sizes = {name: _size(told, where, name) for name in _SIZES}
    scaling = told.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if told.get("use_sliding_window") or kind != "default":
        raise ValueError(
            f"{where} has {'sliding windows' if told.get('use_sliding_window') else f'positions of type {kind}'}: expected none"
        )
    config = hf.Qwen3Config(
        **sizes,
        **{name: told[name] for name in _FREE if told.get(name) is not None},
        head_dim=told.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"],
        rope_parameters={"rope_type": "default", "rope_theta": float(told.get("rope_theta", 10000))},
        tie_word_embeddings=False,
        pad_token_id=None,
    )
    return hf.Qwen3Model(config)


def _size(told: Mapping[str, Any], where: str, name: str) -> int:
    if not isinstance(told.get(name), int):
        raise ValueError(f"config.json has no {name} in {where}: expected a published Qwen3-TTS")
    return told[name]
