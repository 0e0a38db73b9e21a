"""Random recognisers other than Whisper, with processors in the layout of published checkpoints; a window of two seconds."""

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
ENCODER = {"num_mel_bins": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "hidden_size": 16}
LAYERS = {"num_mel_bins": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16}


def tokenizer() -> Any:
    """A word is a token; the rest of the vocabulary are numbered words."""
    words = [*SPECIAL, *WORDS]
    words += [f"w{number}" for number in range(len(words), VOCAB)]
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+"), behavior="removed", invert=True)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=found, padding_side="left", extra_special_tokens=SOUNDS, **names)


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
    "Qwen2-Audio": qwen2_audio,
    "Moonshine": moonshine,
}
