"""Random recognisers other than Whisper, with processors in the layout of published checkpoints; a window of two seconds."""

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers as hf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tests.sizes import IDS, LLAMA, Case, build

RATE = 16_000
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<sound>", "<|audio_bos|>", "<|audio_eos|>")
WORDS = tuple("please write down what is said transcribe the input speech this audio into text user red blue green sings runs".split())
VOCAB = 60
SOUNDS = dict(zip(("audio_token", "audio_bos_token", "audio_eos_token"), SPECIAL[4:], strict=True))
SOUND = SPECIAL.index("<sound>")
TEMPLATE = (
    "{% for m in messages %}user {% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% else %}"
    "<|audio_bos|><sound><|audio_eos|>{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %} red{% endif %}"
)
OMNI_SPECIAL = {
    **SOUNDS,
    **{f"{kind}_token": f"<|{kind.upper()}|>" for kind in ("image", "video")},
    **{f"vision_{end}_token": f"<|vision_{end}|>" for end in ("bos", "eos")},
}
OMNI_IDS = {"vision_start_token_id": SOUND + 5, "vision_end_token_id": SOUND + 6}
OMNI_TOWER = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
MISTRAL = (
    *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
    *(f"<SPECIAL_{rank}>" for rank in range(20, 24)),
    *("[AUDIO]", "[BEGIN_AUDIO]"),
)
"""Special tokens from rank 5 on."""
BARE = TEMPLATE.replace("<|audio_bos|><sound><|audio_eos|>", "<sound>")
"""For processors that bracket the sound themselves, or have no brackets."""
ENCODER = {"num_mel_bins": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "hidden_size": 16}
LAYERS = {"num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16}


def tokenizer(more: Mapping[str, str] = SOUNDS) -> Any:
    """A word is a token; the rest of the vocabulary are numbered words.

    Args:
        more: special tokens by name, besides the usual ones.
    """
    words = [*SPECIAL[:4], *more.values(), *WORDS]
    words += [f"w{number}" for number in range(len(words), VOCAB)]
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), behavior="removed", invert=True)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=found, padding_side="left", extra_special_tokens=dict(more), **names)


def extractor() -> Any:
    return hf.WhisperFeatureExtractor(feature_size=16, chunk_length=2)


def _text(kind: Any, **more: Any) -> dict[str, Any]:
    return kind(**{**LLAMA, "max_position_embeddings": 512, **more}).to_dict()


def glm_asr() -> tuple[Any, Any]:
    encoder = hf.GlmAsrEncoderConfig(**ENCODER, num_key_value_heads=2)
    config = hf.GlmAsrConfig(audio_config=encoder.to_dict(), text_config=_text(hf.LlamaConfig), audio_token_id=SOUND)
    processor = hf.GlmAsrProcessor(extractor(), tokenizer(), chat_template=TEMPLATE, audio_token="<sound>")
    return build(Case(lambda: hf.GlmAsrForConditionalGeneration(config), "")), processor


def audio_flamingo3() -> tuple[Any, Any]:
    encoder = hf.AudioFlamingo3EncoderConfig(**ENCODER, max_source_positions=100)
    config = hf.AudioFlamingo3Config(audio_config=encoder.to_dict(), text_config=_text(hf.Qwen2Config), audio_token_id=SOUND)
    processor = hf.AudioFlamingo3Processor(extractor(), tokenizer(), chat_template=TEMPLATE)
    return build(Case(lambda: hf.AudioFlamingo3ForConditionalGeneration(config), "")), processor


def music_flamingo() -> tuple[Any, Any]:
    encoder = hf.AudioFlamingo3EncoderConfig(**ENCODER, max_source_positions=100)
    ids = {"audio_token_id": SOUND, "audio_bos_token_id": SOUND + 1, "audio_eos_token_id": SOUND + 2}
    config = hf.MusicFlamingoConfig(audio_config=encoder.to_dict(), text_config=_text(hf.Qwen2Config), **ids)
    brackets = {"audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
    processor = hf.MusicFlamingoProcessor(extractor(), tokenizer(), chat_template=BARE, audio_token="<sound>", **brackets)
    return build(Case(lambda: hf.MusicFlamingoForConditionalGeneration(config), "")), processor


def granite_speech() -> tuple[Any, Any]:
    encoder = hf.GraniteSpeechEncoderConfig(
        input_dim=160, num_layers=2, hidden_dim=16, num_heads=2, output_dim=8, context_size=20, max_pos_emb=32, conv_kernel_size=5
    )
    projector = hf.Blip2QFormerConfig(
        hidden_size=16, encoder_hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=1
    )
    config = hf.GraniteSpeechConfig(
        encoder_config=encoder.to_dict(),
        projector_config=projector.to_dict(),
        text_config=_text(hf.GraniteConfig),
        audio_token_index=SOUND,
        has_lora_adapter=False,
    )
    processor = hf.GraniteSpeechProcessor(hf.GraniteSpeechFeatureExtractor(), tokenizer(), audio_token="<sound>", chat_template=BARE)
    return build(Case(lambda: hf.GraniteSpeechForConditionalGeneration(config), "")), processor


def _omni(model: Any, config: Any, processor: Any) -> tuple[Any, Any]:
    """The thinker of a Qwen Omni model, and the processor of the whole."""
    sizes = {"patch_size": 4, "merge_size": 2}
    sight = (hf.Qwen2VLImageProcessor(**sizes), hf.Qwen2VLVideoProcessor(**sizes))
    found = processor(*sight, extractor(), tokenizer(OMNI_SPECIAL), chat_template=TEMPLATE)
    return build(Case(lambda: model(config), "")), found


def qwen2_5_omni() -> tuple[Any, Any]:
    sound = hf.Qwen2_5OmniAudioEncoderConfig(**LAYERS, n_window=50, max_source_positions=100, output_dim=32)
    sight = hf.Qwen2_5OmniVisionEncoderConfig(**OMNI_TOWER, out_hidden_size=32, fullatt_block_indexes=[0])
    config = hf.Qwen2_5OmniThinkerConfig(
        audio_config=sound.to_dict(),
        vision_config=sight.to_dict(),
        text_config=_text(hf.Qwen2_5OmniTextConfig, rope_parameters=ROPE),
        audio_token_index=SOUND,
        image_token_index=SOUND + 3,
        video_token_index=SOUND + 4,
        audio_start_token_id=SOUND + 1,
        audio_end_token_id=SOUND + 2,
        **OMNI_IDS,
    )
    return _omni(hf.Qwen2_5OmniThinkerForConditionalGeneration, config, hf.Qwen2_5OmniProcessor)


def qwen3_omni() -> tuple[Any, Any]:
    sound = hf.Qwen3OmniMoeAudioEncoderConfig(**LAYERS, n_window=50, n_window_infer=400, output_dim=32, downsample_hidden_size=4)
    sight = hf.Qwen3OmniMoeVisionEncoderConfig(**OMNI_TOWER, out_hidden_size=32, deepstack_visual_indexes=[0])
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    config = hf.Qwen3OmniMoeThinkerConfig(
        audio_config=sound.to_dict(),
        vision_config=sight.to_dict(),
        text_config=_text(hf.Qwen3OmniMoeTextConfig, rope_parameters=ROPE, **experts),
        audio_token_id=SOUND,
        image_token_id=SOUND + 3,
        video_token_id=SOUND + 4,
        audio_start_token_id=SOUND + 1,
        **OMNI_IDS,
    )
    return _omni(hf.Qwen3OmniMoeThinkerForConditionalGeneration, config, hf.Qwen3OmniMoeProcessor)


def qwen3_asr() -> tuple[Any, Any]:
    encoder = hf.Qwen3ASREncoderConfig(**LAYERS, n_window=50, n_window_infer=400, output_dim=32, downsample_hidden_size=4)
    ids = {"audio_token_id": SOUND, "timestamp_token_id": VOCAB - 1, "pad_token_id": 0, "eos_token_id": 2}
    config = hf.Qwen3ASRConfig(audio_config=encoder.to_dict(), text_config=_text(hf.Qwen3Config, head_dim=8), **ids)
    processor = hf.Qwen3ASRProcessor(hf.Qwen3ASRFeatureExtractor(feature_size=16), tokenizer(), chat_template=TEMPLATE)
    return build(Case(lambda: hf.Qwen3ASRForConditionalGeneration(config), "")), processor


def qwen2_audio(layers: int = 2) -> tuple[Any, Any]:
    encoder = hf.Qwen2AudioEncoderConfig(**LAYERS, max_source_positions=100)
    config = hf.Qwen2AudioConfig(
        audio_config=encoder.to_dict(), text_config=_text(hf.Qwen2Config, num_hidden_layers=layers), audio_token_index=SOUND
    )
    processor = hf.Qwen2AudioProcessor(extractor(), tokenizer(), chat_template=TEMPLATE, audio_token="<sound>")
    return build(Case(lambda: hf.Qwen2AudioForConditionalGeneration(config), "")), processor


def tekken(folder: Path) -> None:
    """Write a tokenizer of bytes in Mistral's format, its special tokens where the published one has them."""
    special = dict(enumerate(("<unk>", "<s>", "</s>", "[INST]", "[/INST]", *MISTRAL))) | {34: "[TRANSCRIBE]"}
    tokens = [{"rank": rank, "token_str": special.get(rank, f"<SPECIAL_{rank}>"), "is_control": True} for rank in range(40)]
    pieces = [*(bytes([byte]) for byte in range(256)), b"la", b"en"]
    vocab = [{"rank": rank, "token_bytes": b64encode(piece).decode(), "token_str": None} for rank, piece in enumerate(pieces)]
    sizes = {"num_vocab_tokens": len(pieces), "default_vocab_size": 40 + len(pieces), "default_num_special_tokens": 40}
    config = {"pattern": r"\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]+", "version": "v7", **sizes}
    sound = {"num_mel_bins": 16, "hop_length": 160, "window_size": 400}
    audio = {"sampling_rate": RATE, "frame_rate": 12.5, "audio_encoding_config": sound, "chunk_length_s": 2.0}
    (folder / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": tokens, "audio": audio}))


def voxtral() -> tuple[Any, Any]:
    """Its processor is read from a folder, as published: a tokenizer in Mistral's format, and no package that reads it."""
    encoder = hf.VoxtralEncoderConfig(**ENCODER, max_source_positions=100)
    config = hf.VoxtralConfig(
        audio_config=encoder.to_dict(), text_config=_text(hf.LlamaConfig, vocab_size=300), audio_token_id=24, pad_token_id=11
    )
    with TemporaryDirectory() as folder:
        tekken(Path(folder))
        config.save_pretrained(folder)
        extractor().save_pretrained(folder)
        processor = hf.AutoProcessor.from_pretrained(folder)
    return build(Case(lambda: hf.VoxtralForConditionalGeneration(config), "")), processor


def moonshine() -> tuple[Any, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "encoder_num_hidden_layers": 1,
        "decoder_num_hidden_layers": 2,
    }
    heads = {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "max_position_embeddings": 64}
    config = hf.MoonshineConfig(**sizes, **heads, decoder_start_token_id=1, **IDS)
    sound = hf.Wav2Vec2FeatureExtractor(sampling_rate=RATE, do_normalize=False, return_attention_mask=True)
    return build(Case(lambda: hf.MoonshineForConditionalGeneration(config), "")), hf.Wav2Vec2Processor(sound, tokenizer())


RECOGNISERS = {
    "GLM-ASR": glm_asr,
    "Audio Flamingo 3": audio_flamingo3,
    "Qwen3-ASR": qwen3_asr,
    "Music Flamingo": music_flamingo,
    "Granite Speech": granite_speech,
    "Qwen2.5-Omni": qwen2_5_omni,
    "Qwen3-Omni": qwen3_omni,
    "Qwen2-Audio": qwen2_audio,
    "Voxtral": voxtral,
    "Moonshine": moonshine,
}
