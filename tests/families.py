"""The model families with tests of their own, as small random models. Every other architecture: `python -m tests.sweep`."""

from typing import Any

import torch
import transformers as hf

from tests.seeing import SIGHTS, seen
from tests.sizes import GEMMA_LAYERS, IDS, LLAMA, SMALL, VOCAB, Case, build

__all__ = ["AUDIO", "FAMILIES", "FRAME_BOUND", "LLAMA", "REFUSED", "SOUND", "VOCAB", "Case", "build", "inputs_for", "named_families"]

SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    **IDS,
}


def t5() -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))


def whisper() -> Any:
    config = hf.WhisperConfig(
        **SEQ2SEQ,
        max_source_positions=50,
        max_target_positions=64,
        num_mel_bins=16,
        decoder_start_token_id=3,
        suppress_tokens=[0, 5, 6],
        begin_suppress_tokens=[7],
        tie_word_embeddings=False,
    )
    model = hf.WhisperForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.decoder.embed_positions.weight, std=0.6)  # else it says one word for ever
    return model


def gpt2() -> Any:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, **IDS))


def bart() -> Any:
    config = hf.BartConfig(**SEQ2SEQ, max_position_embeddings=128, decoder_start_token_id=2, forced_eos_token_id=None)
    return hf.BartForConditionalGeneration(config)


def gemma3() -> Any:
    sizes = {**LLAMA, "num_hidden_layers": 4, "head_dim": 8}
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**sizes, sliding_window=8, layer_types=GEMMA_LAYERS))


AUDIO = VOCAB - 1  # the placeholder for sound
ENCODER = {"num_mel_bins": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "hidden_size": 16}


def qwen2_audio() -> Any:
    sizes = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16}
    encoder = hf.Qwen2AudioEncoderConfig(**sizes, max_source_positions=20)
    config = hf.Qwen2AudioConfig(audio_config=encoder.to_dict(), text_config=hf.Qwen2Config(**LLAMA).to_dict(), audio_token_index=AUDIO)
    return hf.Qwen2AudioForConditionalGeneration(config)


def voxtral() -> Any:
    encoder = hf.VoxtralEncoderConfig(**ENCODER | {"intermediate_size": 64}, max_source_positions=20)  # four positions side by side
    config = hf.VoxtralConfig(audio_config=encoder.to_dict(), text_config=hf.LlamaConfig(**LLAMA).to_dict(), audio_token_id=AUDIO)
    return hf.VoxtralForConditionalGeneration(config)


def audio_flamingo3() -> Any:
    encoder = hf.AudioFlamingo3EncoderConfig(**ENCODER, max_source_positions=20)
    config = hf.AudioFlamingo3Config(audio_config=encoder.to_dict(), text_config=hf.Qwen2Config(**LLAMA).to_dict(), audio_token_id=AUDIO)
    return hf.AudioFlamingo3ForConditionalGeneration(config)


def glm_asr() -> Any:
    encoder = hf.GlmAsrEncoderConfig(**ENCODER | {"intermediate_size": 64}, num_key_value_heads=2)
    config = hf.GlmAsrConfig(audio_config=encoder.to_dict(), text_config=hf.LlamaConfig(**LLAMA).to_dict(), audio_token_id=AUDIO)
    return hf.GlmAsrForConditionalGeneration(config)


def qwen3_asr() -> Any:
    sizes = {"num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16}
    encoder = hf.Qwen3ASREncoderConfig(**sizes, n_window=50, n_window_infer=400, output_dim=32, downsample_hidden_size=4)
    text = hf.Qwen3Config(**LLAMA, head_dim=8)
    ids = {"audio_token_id": AUDIO, "timestamp_token_id": AUDIO - 1, "pad_token_id": 0, "eos_token_id": 2}
    return hf.Qwen3ASRForConditionalGeneration(hf.Qwen3ASRConfig(audio_config=encoder.to_dict(), text_config=text.to_dict(), **ids))


FAMILIES = {
    "Llama": Case(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)), "decoder"),
    "Qwen2": Case(lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**LLAMA)), "decoder"),
    "Qwen3": Case(lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA, head_dim=8)), "decoder"),
    "Mistral": Case(lambda: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=8)), "decoder", "past its sliding window"),
    "Gemma-3": Case(gemma3, "decoder", "full and sliding layers mixed"),
    "Phi-3": Case(lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**LLAMA)), "decoder"),
    "GPT-2": Case(gpt2, "decoder", "learned positions"),
    "GPT-NeoX": Case(lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, **IDS, intermediate_size=64)), "decoder"),
    "OPT": Case(
        lambda: hf.OPTForCausalLM(hf.OPTConfig(**SMALL, **IDS, ffn_dim=64, word_embed_proj_dim=32)), "decoder", "learned positions"
    ),
    "T5": Case(t5, "encoder-decoder", "relative position bias per column"),
    "BART": Case(bart, "encoder-decoder", "learned positions per column"),
    "Whisper": Case(whisper, "encoder-decoder, audio in", "suppressed tokens honoured; audio of one window"),
    "Qwen2-Audio": Case(qwen2_audio, "decoder, audio in", "clips of several lengths, encoded once"),
    "Voxtral": Case(voxtral, "decoder, audio in", "audio of one window, encoded once"),
    "Audio Flamingo 3": Case(audio_flamingo3, "decoder, audio in", "clips of several lengths, encoded once"),
    "GLM-ASR": Case(glm_asr, "decoder, audio in", "clips of several lengths, encoded once"),
    "Qwen3-ASR": Case(qwen3_asr, "decoder, audio in", "clips of several lengths, encoded once"),
    **{name: vision.case for name, vision in SIGHTS.items()},
}

REFUSED = {
    "RWKV": Case(lambda: hf.RwkvForCausalLM(hf.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2)), "recurrent"),
}

KYUTAI = {**LLAMA, "ffn_dim": 64, "head_dim": 8, "codebook_vocab_size": 20, "num_codebooks": 2, "audio_bos_token_id": 19}
REALTIME = {"audio_config": ENCODER | {"num_key_value_heads": 2, "head_dim": 8}, "text_config": LLAMA | {"head_dim": 8}}
FRAME_BOUND = {
    "Kyutai speech-to-text": Case(
        lambda: hf.KyutaiSpeechToTextForConditionalGeneration(hf.KyutaiSpeechToTextConfig(**KYUTAI, audio_pad_token_id=70)), "frames"
    ),
    "Voxtral Realtime": Case(lambda: hf.VoxtralRealtimeForConditionalGeneration(hf.VoxtralRealtimeConfig(**REALTIME)), "frames"),
}


def inputs_for(name: str, rows: int, pad: str = "left", seed: int = 1) -> dict[str, torch.Tensor]:
    """One prompt, or ragged ones padded on the given side."""
    torch.manual_seed(seed)
    if name == "Whisper":
        return {"input_features": 3 * torch.randn(rows, 16, 1) + torch.randn(rows, 16, 100)}  # what is heard differs from row to row
    if name in SOUND:
        return heard(name, rows)
    if name in SIGHTS:
        return seen(name, (1, 2, 1) if rows == 3 else (2,) * rows, pad, seed)
    ids, mask = torch.randint(3, VOCAB, (rows, 12)), torch.ones(rows, 12, dtype=torch.long)
    for row, missing in enumerate((5, 0, 2)[:rows] if rows > 1 else ()):
        columns = slice(0, missing) if pad == "left" else slice(12 - missing, 12)
        mask[row, columns] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


SOUND = {  # frames of the features, their mask's name, and for each row's frames of sound the positions they take in the prompt
    "Qwen2-Audio": (40, "feature_attention_mask", {20: 5, 40: 10, 28: 7}),
    "Voxtral": (40, None, {40: 5}),
    "Audio Flamingo 3": (40, "input_features_mask", {20: 5, 40: 10, 28: 7}),
    "GLM-ASR": (40, "input_features_mask", {20: 2, 40: 5, 28: 3}),
    "Qwen3-ASR": (100, "input_features_mask", {20: 3, 40: 5, 28: 4}),
}


def heard(name: str, rows: int) -> dict[str, torch.Tensor]:
    """Prompts of a speech language model, one clip each between words, ragged and padded on the left, as its processor would."""
    size, mask_name, clips = SOUND[name]
    lengths = (list(clips) * rows)[:rows]
    prompts = [
        torch.cat([torch.randint(3, AUDIO, (before,)), torch.full((clips[n],), AUDIO), torch.randint(3, AUDIO, (4,))])
        for before, n in zip((2, 6, 3), lengths, strict=False)
    ]
    longest = max(map(len, prompts))
    ids = torch.stack([torch.nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    found = {"input_ids": ids, "attention_mask": (ids != 0).long(), "input_features": torch.randn(rows, 8, size)}
    if mask_name is not None:
        found[mask_name] = (torch.arange(size) < torch.tensor(lengths)[:, None]).long()
    return found


def named_families() -> list[str]:
    """The lines of docs/families.md about the families above. `python -m tests.sweep --write docs/families.md` writes the page."""
    lines = [
        "## Families with tests of their own",
        "",
        "Run by `tests/text/test_families.py`: the tokens of `generate(do_sample=False)` in fp32, alone and in a ragged batch of three, as",
        "a chain and as a tree.",
        "",
        "| family | kind | what its test covers besides |",
        "|---|---|---|",
    ]
    return lines + [f"| {name} | {case.kind} | {case.note} |" for name, case in FAMILIES.items()]
