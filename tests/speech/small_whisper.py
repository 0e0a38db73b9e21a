"""A random multilingual Whisper in the layout of published checkpoints, with a window of one second, and sound for it."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers as hf

SPECIALS = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
FIRST = 256
IDS = {token: FIRST + place for place, token in enumerate(SPECIALS)}
STAMPS = FIRST + len(SPECIALS)  # <|0.00|>
SIZE = STAMPS + 51
RATE = 16_000


def tokenizer() -> hf.WhisperTokenizer:
    """Bytes, and Whisper's special tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = {letter: place for place, letter in enumerate(sorted(ByteLevel.alphabet()))}
    with TemporaryDirectory() as folder:
        Path(folder, "vocab.json").write_text(json.dumps(letters | IDS), encoding="utf-8")
        Path(folder, "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        end = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>")
        return hf.WhisperTokenizer.from_pretrained(folder, **end, additional_special_tokens=list(SPECIALS))


def processor() -> hf.WhisperProcessor:
    return hf.WhisperProcessor(hf.WhisperFeatureExtractor(feature_size=16, chunk_length=1), tokenizer())


def whisper(seed: int = 0, width: int = 32, english: bool = False) -> hf.WhisperForConditionalGeneration:
    """Random weights that write text and timestamps, and end."""
    torch.manual_seed(seed)
    end = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), IDS["<|endoftext|>"])
    config = hf.WhisperConfig(
        vocab_size=SIZE,
        d_model=width,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=50,
        max_target_positions=40,
        decoder_start_token_id=IDS["<|startoftranscript|>"],
        suppress_tokens=None,
        begin_suppress_tokens=None,
        tie_word_embeddings=False,
        **end,
    )
    model = hf.WhisperForConditionalGeneration(config).eval()
    torch.nn.init.normal_(model.model.decoder.embed_positions.weight, std=0.6)  # else it says one word for ever
    torch.nn.init.normal_(model.proj_out.weight, std=0.4)
    model.proj_out.weight.data[IDS["<|en|>"] : IDS["<|translate|>"]] *= 3
    for part in (model.model.encoder.conv1, model.model.encoder.conv2):
        torch.nn.init.normal_(part.weight, std=0.2)
    for layer in model.model.decoder.layers:  # what it hears decides what it writes
        for part in (layer.encoder_attn.q_proj, layer.encoder_attn.k_proj, layer.encoder_attn.v_proj, layer.encoder_attn.out_proj):
            torch.nn.init.normal_(part.weight, std=0.3)
    many = {"lang_to_id": {token: IDS[token] for token in SPECIALS[2:5]}, "task": "transcribe"}
    many["task_to_id"] = {name: IDS[f"<|{name}|>"] for name in ("transcribe", "translate")}
    model.generation_config = hf.GenerationConfig(
        **end,
        decoder_start_token_id=IDS["<|startoftranscript|>"],
        suppress_tokens=[*range(IDS["<|startoftranscript|>"], STAMPS - 1), *range(128, 256)],
        begin_suppress_tokens=[IDS["<|endoftext|>"]],
        no_timestamps_token_id=IDS["<|notimestamps|>"],
        prev_sot_token_id=IDS["<|startofprev|>"],
        max_initial_timestamp_index=10,
        alignment_heads=[[0, 1], [1, 2]],
        max_length=40,
        return_timestamps=False,
        is_multilingual=not english,
        **({} if english else many),
    )
    return model


def sounds(*seconds: float) -> list[torch.Tensor]:
    """Noise of changing colour, so that each window has text of its own."""
    generator, found = torch.Generator().manual_seed(3), []
    for length in seconds:
        time = torch.arange(round(length * RATE)) / RATE
        tones = sum(torch.sin(2 * torch.pi * (200 + 900 * torch.rand((), generator=generator)) * time * (1 + time / 3)) for _ in range(3))
        found.append(0.1 * tones + 0.02 * torch.randn(len(time), generator=generator))
    return found
