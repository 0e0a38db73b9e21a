"""Small random checkpoints in published layouts: Llasa with X-Codec2, Orpheus with SNAC."""

import json
from pathlib import Path
from typing import Any

import torch
from snac import SNAC
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.speech.small_codecs import SIZE, spread, xcodec2

BOS, EOT = "<|begin_of_text|>", "<|eot_id|>"
LLAMA = [BOS, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", EOT]
KINDS = [f"<|{what}_{edge}|>" for what in ("TEXT_GENERATION", "TEXT_UNDERSTANDING") for edge in ("START", "END")]
KINDS += [f"<|{what}_{edge}|>" for what in ("SPEECH_GENERATION", "SPEECH_UNDERSTANDING") for edge in ("START", "END")]
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim }}"
    "{{ '<|eot_id|>' }}{% endfor %}"
)
SNAC_SIZES = {
    "sampling_rate": 24000, "encoder_dim": 4, "encoder_rates": [2, 4, 8, 8], "decoder_dim": 64, "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None, "codebook_size": SIZE, "codebook_dim": 8, "vq_strides": [4, 2, 1], "noise": True, "depthwise": True,
}  # fmt: skip


def llama_tokenizer(names: list[str], **options: Any) -> PreTrainedTokenizerFast:
    """Letters, Llama 3's controls and `names`; a text begins with <|begin_of_text|>, and there is no padding."""
    marks = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {name: place for place, name in enumerate([*marks, *LLAMA, *names])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in (*LLAMA, *names)])
    made.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])])
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BOS, eos_token=EOT, **options)


def llama(values: int, layers: int = 2, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=values, num_hidden_layers=layers, max_position_embeddings=4096, **sizes)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(5 if parameter.dim() > 1 else 1)
    return model


def llasa_folder(place: Path) -> Path:
    """As HKUSTAudio/Llasa-1B, its codec beside it as in HKUSTAudio/xcodec2-hf."""
    tokenizer = llama_tokenizer([*KINDS, *(f"<|s_{code}|>" for code in range(SIZE))], chat_template=CHAT)
    llama(len(tokenizer)).save_pretrained(place)
    tokenizer.save_pretrained(place)
    xcodec2(downsampling_ratios=[2, 2, 4, 4, 5], semantic_width=160).save_pretrained(place / "codec")
    return place


def orpheus_folder(place: Path) -> Path:
    """As canopylabs/orpheus-3b-0.1-ft, its codec beside it as in hubertsiuzdak/snac_24khz."""
    tokenizer = llama_tokenizer([f"<custom_token_{number}>" for number in range(10 + 7 * SIZE)])
    llama(len(tokenizer)).save_pretrained(place)
    tokenizer.save_pretrained(place)
    snac_folder(place / "codec")
    return place


def snac_folder(place: Path) -> Path:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(SNAC_SIZES), encoding="utf-8")
    torch.save(spread(lambda: SNAC(**SNAC_SIZES)).state_dict(), place / "pytorch_model.bin")
    return place
