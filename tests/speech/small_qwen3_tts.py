"""A small random Qwen3-TTS in the published layout, and its greedy frames by an implementation of its own.

The reference reads the published tensors by their published names and runs every prefix anew: no cache, no drafts, no transformers.
"""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

WORDS = ("hello", "there", "a", "longer", "thing", "to", "say", "three", "five", "speak", "slowly", "words", "in", "it", ".")
SPECIALS = ("<unk>", "<|im_start|>", "<|im_end|>", "\n", "assistant", "user", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")
VOCABULARY = {word: number for number, word in enumerate((*SPECIALS, *WORDS))}
SIZE, VALUES, BOOKS, WIDTH, NARROW = 32, 32 + 1024, 4, 32, 16
"""Codes of a book, values of the talker, codes of a frame, width of the talker and of the code predictor."""
PAD, BOS, END = 32, 33, 35
TALKER = {
    "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VALUES, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "max_position_embeddings": 512, "hidden_act": "silu",
    "rope_scaling": {"interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default", "type": "default"},
    "text_hidden_size": 20, "text_vocab_size": len(VOCABULARY), "num_code_groups": BOOKS, "attention_bias": False,
    "codec_pad_id": PAD, "codec_bos_id": BOS, "codec_eos_token_id": END, "codec_think_id": 36, "codec_nothink_id": 37,
    "codec_think_bos_id": 38, "codec_think_eos_id": 39, "codec_language_id": {"english": 40, "chinese": 41, "beijing_dialect": 42},
    "spk_id": {"vivian": 48, "dylan": 49}, "spk_is_dialect": {"vivian": False, "dylan": "beijing_dialect"},
}  # fmt: skip
PREDICTOR = {
    "hidden_size": NARROW, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": SIZE,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000, "max_position_embeddings": 64, "hidden_act": "silu",
    "num_code_groups": BOOKS, "attention_bias": False,
}  # fmt: skip
SPEAKER = {
    "enc_dim": WIDTH, "enc_channels": [16, 16, 16, 16, 48], "enc_attention_channels": 8, "enc_res2net_scale": 2, "enc_se_channels": 8,
}  # fmt: skip
SETTINGS = {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 1.0, "repetition_penalty": 1.05}
SETTINGS |= {f"subtalker_{name}": SETTINGS[name] for name in ("temperature", "top_k", "top_p")} | {"subtalker_dosample": True}
DECODER = {
    "codebook_size": SIZE, "codebook_dim": 16, "latent_dim": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "num_quantizers": BOOKS, "decoder_dim": 16,
    "upsample_rates": [2, 2], "upsampling_ratios": [2, 1], "rope_theta": 10000,
}  # fmt: skip
MIMI = {
    "sampling_rate": 24000, "hidden_size": 16, "num_filters": 4, "upsampling_ratios": [2, 2], "codebook_size": SIZE, "codebook_dim": 8,
    "num_quantizers": BOOKS, "vector_quantization_hidden_dimension": 8, "upsample_groups": 16, "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 20, "frame_rate": 3000.0,
}  # fmt: skip
HOP = 8


def tokenizer() -> Any:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(WordLevel(VOCABULARY, unk_token="<unk>"))
    made.pre_tokenizer = Split(Regex(r" +"), "removed")
    marks = [token for token in SPECIALS[1:] if token not in ("assistant", "user")]
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", additional_special_tokens=marks)


def _layers(told: dict[str, Any], start: str) -> dict[str, tuple[int, ...]]:
    width, head = told["hidden_size"], told["head_dim"]
    queries, keys, inner = told["num_attention_heads"] * head, told["num_key_value_heads"] * head, told["intermediate_size"]
    shapes = {"self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width)}
    shapes |= {"self_attn.o_proj": (width, queries), "self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    shapes |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
    shapes |= {"input_layernorm": (width,), "post_attention_layernorm": (width,)}
    layers = range(told["num_hidden_layers"])
    return {f"{start}layers.{layer}.{name}.weight": shape for layer in layers for name, shape in shapes.items()} | {
        f"{start}norm.weight": (width,)
    }


def tensors(seed: int = 0, gain: float = 0.35) -> dict[str, Tensor]:
    """The published names with random values, sharp enough that greedy decoding has no ties."""
    text = TALKER["text_hidden_size"]
    shapes: dict[str, tuple[int, ...]] = _layers(TALKER, "talker.model.") | _layers(PREDICTOR, "talker.code_predictor.model.")
    shapes |= {"talker.model.codec_embedding.weight": (VALUES, WIDTH), "talker.model.text_embedding.weight": (len(VOCABULARY), text)}
    shapes |= {"talker.text_projection.linear_fc1.weight": (text, text), "talker.text_projection.linear_fc1.bias": (text,)}
    shapes |= {"talker.text_projection.linear_fc2.weight": (WIDTH, text), "talker.text_projection.linear_fc2.bias": (WIDTH,)}
    shapes |= {"talker.codec_head.weight": (VALUES, WIDTH)}
    small = "talker.code_predictor."
    shapes |= {f"{small}small_to_mtp_projection.weight": (NARROW, WIDTH), f"{small}small_to_mtp_projection.bias": (NARROW,)}
    for book in range(BOOKS - 1):
        shapes |= {f"{small}model.codec_embedding.{book}.weight": (SIZE, WIDTH), f"{small}lm_head.{book}.weight": (SIZE, NARROW)}
    draw = torch.Generator().manual_seed(seed)
    made = {name: gain * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    made |= {name: 1 + value for name, value in made.items() if name.endswith("norm.weight")}
    made["talker.codec_head.weight"][END] *= 4.0
    return made


def published(place: Path, kind: str = "custom_voice", seed: int = 0, sound: bool = True) -> Path:
    """Write a checkpoint as it is published and return its folder."""
    config = {
        "model_type": "qwen3_tts", "architectures": ["Qwen3TTSForConditionalGeneration"], "tts_model_type": kind, "tts_model_size": "0b6",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz", "tts_pad_token_id": VOCABULARY["<tts_pad>"],
        "tts_bos_token_id": VOCABULARY["<tts_text_bos>"], "tts_eos_token_id": VOCABULARY["<tts_text_eod>"],
        "talker_config": TALKER | {"code_predictor_config": PREDICTOR}, "speaker_encoder_config": SPEAKER,
    }  # fmt: skip
    weights = tensors(seed)
    if kind == "base":
        from mmspec.models.compat.qwen_tts import speaker_encoder

        torch.manual_seed(seed)
        weights |= {f"speaker_encoder.{name}": value for name, value in speaker_encoder(SPEAKER).state_dict().items()}
        config["talker_config"] = config["talker_config"] | {"spk_id": {}, "spk_is_dialect": {}}
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (place / "generation_config.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    save_file(weights, place / "model.safetensors")
    tokenizer().save_pretrained(place)
    if sound:
        codec(place / "speech_tokenizer")
    return place


def codec(place: Path, seed: int = 5) -> Path:
    """Write a codec of 12 Hz as it is published: Mimi's encoder, and the decoder's tensors under their published names."""
    from transformers import MimiConfig, MimiModel

    from mmspec.speech.codecs.qwen3_tts import Qwen3TTSDecoder

    torch.manual_seed(seed)
    decoder = Qwen3TTSDecoder(DECODER)
    made = {name: 0.15 * torch.randn_like(value) for name, value in decoder.state_dict().items()}
    weights = {}
    for name, value in made.items():
        if name.startswith(("first.", "rest.")):
            part, what = name.split(".", 1)
            start = f"decoder.quantizer.rvq_{part}."
            if what == "projection.weight":
                weights[f"{start}output_proj.weight"] = value
                weights[f"{start}input_proj.weight"] = torch.zeros_like(value).transpose(0, 1).contiguous()
            for book in range(len(value) if what in ("sums", "counts") else 0):
                key = "embedding_sum" if what == "sums" else "cluster_usage"
                weights[f"{start}vq.layers.{book}._codebook.{key}"] = value[book].abs() + 0.5 if what == "counts" else value[book].clone()
        elif name.startswith(("input_proj", "output_proj")):
            weights[f"decoder.pre_transformer.{name}"] = value
        else:
            weights[f"decoder.{name}"] = value
    heard = MimiModel(MimiConfig(**MIMI)).eval()
    unheard = ("upsample.", "decoder_transformer.", "decoder.")
    renamed = {
        "encoder.encoder_seanet.": "encoder.",
        "encoder.encoder_transformer.": "encoder_transformer.",
        "encoder.downsample.": "downsample.",
    }
    for name, value in heard.state_dict().items():
        start = next((start for start in renamed if name.startswith(start)), "")
        if not name.startswith(unheard):
            weights[f"encoder.{renamed.get(start, '')}{name[len(start) :]}"] = value.clone()
    place.mkdir(parents=True, exist_ok=True)
    told = {"model_type": "qwen3_tts_tokenizer_12hz", "decoder_config": DECODER, "encoder_config": MIMI}
    told |= {"output_sample_rate": 24000, "input_sample_rate": 24000, "decode_upsample_rate": HOP, "encode_downsample_rate": HOP}
    (place / "config.json").write_text(json.dumps(told), encoding="utf-8")
    save_file({name: value.contiguous() for name, value in weights.items()}, place / "model.safetensors")
    return place


# --- the reference ----------------------------------------------------------------------------------------------------


def norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)


def network(weights: dict[str, Tensor], start: str, told: dict[str, Any], hidden: Tensor) -> Tensor:
    """States [T, D] of one sequence [T, D]."""
    count, head = len(hidden), told["head_dim"]
    angle = torch.arange(count)[:, None] / told["rope_theta"] ** (torch.arange(0, head, 2) / head)
    cos, sin = (torch.cat([each, each], -1)[:, None] for each in (angle.cos(), angle.sin()))

    def turned(x: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., head // 2 :], x[..., : head // 2]], -1) * sin

    for layer in range(told["num_hidden_layers"]):
        own = lambda name, layer=layer: weights[f"{start}layers.{layer}.{name}.weight"]  # noqa: E731
        x = norm(hidden, own("input_layernorm"))
        query = turned(norm((x @ own("self_attn.q_proj").T).view(count, -1, head), own("self_attn.q_norm")))
        key = turned(norm((x @ own("self_attn.k_proj").T).view(count, -1, head), own("self_attn.k_norm")))
        value = (x @ own("self_attn.v_proj").T).view(count, -1, head)
        shared = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(shared, 1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / head**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        hidden = hidden + torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1) @ own("self_attn.o_proj").T
        x = norm(hidden, own("post_attention_layernorm"))
        hidden = hidden + (F.silu(x @ own("mlp.gate_proj").T) * (x @ own("mlp.up_proj").T)) @ own("mlp.down_proj").T
    return norm(hidden, weights[f"{start}norm.weight"])


class Reference:
    """Greedy frames of one request after another, from the published tensors."""

    def __init__(self, weights: dict[str, Tensor]):
        self.weights, self.read = weights, tokenizer()

    def text(self, words: str) -> Tensor:
        own = lambda name: self.weights[f"talker.text_projection.{name}"]  # noqa: E731
        x = self.weights["talker.model.text_embedding.weight"][self.read(words)["input_ids"]]
        x = F.silu(x @ own("linear_fc1.weight").T + own("linear_fc1.bias"))
        return x @ own("linear_fc2.weight").T + own("linear_fc2.bias")

    def code(self, *values: int) -> Tensor:
        return self.weights["talker.model.codec_embedding.weight"][list(values)]

    def frame(self, codes: list[int]) -> Tensor:
        books = [self.code(codes[0])[0]]
        books += [self.weights[f"talker.code_predictor.model.codec_embedding.{book}.weight"][code] for book, code in enumerate(codes[1:])]
        return torch.stack(books).sum(0)

    def prompt(
        self,
        text: str,
        controls: tuple[int, ...],
        voice: Tensor | None,
        streaming: bool,
        instruct: str = "",
        heard: tuple[str, list] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Rows of the prompt, and what is added to the frames behind it; the last one to all later ones."""
        pad, begin, end = self.text("<tts_pad>"), self.text("<tts_text_bos>"), self.text("<tts_text_eod>")
        line = [self.code(*controls), *([] if voice is None else [voice[None]]), self.code(PAD)]
        line = torch.cat(line)
        rows = [self.text(f"<|im_start|>user\n{instruct}<|im_end|>\n")] if instruct else []
        rows += [self.text("<|im_start|>assistant\n"), torch.cat([pad] * (len(line) - 1) + [begin]) + line]
        said = self.text((heard[0] + " " if heard else "") + text)
        said = torch.cat([said, end])
        codes = torch.cat([self.code(BOS), *([self.frame(each)[None] for each in heard[1]] if heard else [])])
        if not streaming:
            return torch.cat([*rows, said + self.code(PAD), codes + pad]), pad
        beside = torch.cat([said] + [pad] * max(0, len(codes) - len(said)))
        return torch.cat([*rows, beside[: len(codes)] + codes]), torch.cat([beside[len(codes) :], pad])

    @torch.no_grad()
    def greedy(self, prompt: tuple[Tensor, Tensor], steps: int, penalty: float = 1.0) -> list[list[int]]:
        """Frames up to the end, at most `steps`."""
        rows, beside = prompt
        found: list[list[int]] = []
        for step in range(steps):
            state = network(self.weights, "talker.model.", TALKER, rows)[-1]
            scores = self.weights["talker.codec_head.weight"] @ state
            for value in {frame[0] for frame in found}:
                scores[value] = scores[value] / penalty if scores[value] > 0 else scores[value] * penalty
            allowed = [*range(SIZE), *([END] if step >= 2 else [])]
            codes = [allowed[int(scores[allowed].argmax())]]
            if codes[0] == END:
                break
            known = [state, self.code(codes[0])[0]]
            for book in range(BOOKS - 1):
                small = "talker.code_predictor."
                x = torch.stack(known) @ self.weights[f"{small}small_to_mtp_projection.weight"].T
                x = network(self.weights, f"{small}model.", PREDICTOR, x + self.weights[f"{small}small_to_mtp_projection.bias"])[-1]
                codes.append(int((self.weights[f"{small}lm_head.{book}.weight"] @ x).argmax()))
                known.append(self.weights[f"{small}model.codec_embedding.{book}.weight"][codes[-1]])
            found.append(codes)
            rows = torch.cat([rows, (self.frame(codes) + beside[min(step, len(beside) - 1)])[None]])
        return found
