"""Small random Higgs Audio v2: model, codec and processor, and a folder of them in the published layout."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from mmspec.speech.families.higgs import HiggsAudio
from mmspec.speech.sound.voice_sample import VoiceSample

BOOKS, CODES, RATE, HOP = 3, 16, 16000, 320
START, END = CODES, CODES + 1
SOUND = ("<|audio_out_bos|>", "<|AUDIO_OUT|>", "<|reserved_special_token_6|>", "<|audio_eos|>")
SPECIAL = ("<pad>", "<|begin|>", "<|eot_id|>", *SOUND, "<unk>")
LETTERS = "abcdefghijklmnopqrstuvwxyz .,!?'\n:ASE"
TEXTS = ["three five", "no", "a red bird sings"]
TEMPLATE = """{{ bos_token }}{% for message in messages %}{{ message['role'][0] + ':' }}{% for part in message['content'] %}
{%- if part['type'] == 'audio' %}{{ '<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}
{{- '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'a:<|audio_out_bos|>' }}{% endif %}"""


def tokenizer() -> Any:
    ids = {token: number for number, token in enumerate((*SPECIAL, *sorted(set(LETTERS + "G"))))}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = {"pad_token": "<pad>", "bos_token": "<|begin|>", "eos_token": "<|eot_id|>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, additional_special_tokens=list(SOUND), padding_side="left", **names)


def higgs_codec() -> Any:
    torch.manual_seed(0)
    sizes = {"encoder_hidden_size": 8, "decoder_hidden_size": 32, "hidden_size": 16, "codebook_dim": 4}
    acoustic = {"model_type": "dac", "downsampling_ratios": [8, 5, 4, 2], "upsampling_ratios": [8, 5, 4, 2], **sizes}
    convolutions = {"conv_dim": [8] * 4, "conv_stride": [5, 4, 4, 4], "conv_kernel": [10, 4, 4, 4]}
    hears = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_conv_pos_embeddings": 4}
    semantic = {"model_type": "hubert", "hidden_size": 16, **convolutions, **hears, "num_conv_pos_embedding_groups": 2}
    config = hf.HiggsAudioV2TokenizerConfig(
        target_bandwidths=[BOOKS * 4 * RATE / HOP / 1000 + 0.01],
        sample_rate=RATE,
        semantic_sample_rate=RATE,
        downsample_factor=HOP,
        codebook_size=CODES,
        codebook_dim=8,
        acoustic_model_config=acoustic,
        semantic_model_config=semantic,
    )
    model = hf.HiggsAudioV2TokenizerModel(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    for quantizer in model.quantizer.quantizers:
        torch.nn.init.normal_(quantizer.codebook.embed)
    return model.eval()


def higgs_network(layers: int = 2, hidden: int = 32, seed: int = 2, gain: float = 6.0, books: int = BOOKS, codes: int = CODES) -> Any:
    torch.manual_seed(seed)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "audio_bos_token_id": 3, "audio_token_id": 4, "audio_delay_token_id": 5}
    config = hf.HiggsAudioV2Config(
        vocab_size=60,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_codebooks=books,
        codebook_size=codes + 2,
        audio_stream_bos_id=codes,
        audio_stream_eos_id=codes + 1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        **heads,
        **ids,
    )
    model = hf.HiggsAudioV2ForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(gain if parameter.dim() > 1 else 1)
    return model


def processor(codec: Any) -> Any:
    listens = hf.DacFeatureExtractor(feature_size=1, hop_length=1, sampling_rate=RATE)
    return hf.HiggsAudioV2Processor(listens, tokenizer(), codec, chat_template=TEMPLATE, audio_stream_bos_id=START, audio_stream_eos_id=END)


@cache
def parts() -> Any:
    return processor(higgs_codec())


def higgs_audio(ras: tuple[int, int] | None = None, **changes: Any) -> HiggsAudio:
    """Greedy unless `ras`, a window and a count, is given."""
    network = higgs_network(**changes)
    if ras is not None:
        network.generation_config.ras_win_len, network.generation_config.ras_win_max_num_repeat = ras
    return HiggsAudio(network, parts())


def folder(place: Path) -> Path:
    """As the published checkpoint lies: the model and its processor, which names the codec's own folder."""
    higgs_codec().save_pretrained(place / "codec")
    codec = hf.HiggsAudioV2TokenizerModel.from_pretrained(place / "codec")
    higgs_network().save_pretrained(place / "model")
    processor(codec).save_pretrained(place / "model")
    return place / "model"


def voice(seed: int = 0) -> VoiceSample:
    generator = torch.Generator().manual_seed(seed)
    return VoiceSample(torch.randn(HOP * 12, generator=generator), RATE, "red bird")


def inputs(text: str, sample: VoiceSample | None = None) -> Any:
    """One conversation by the class's processor."""
    turn = lambda role, said: {"role": role, "content": [{"type": "text", "text": said}]}  # noqa: E731
    turns = [turn("system", "Generate audio following instruction."), turn("scene", "Audio is recorded from a quiet room.")]
    sound: dict[str, Any] = {}
    if sample is not None:
        turns += [turn("user", "red bird"), {"role": "assistant", "content": [{"type": "audio"}]}]
        sound = {"audio": [sample.samples.numpy()], "sampling_rate": RATE}
    told = parts().apply_chat_template([*turns, turn("user", text)], tokenize=False, add_generation_prompt=True)
    return parts()(text=[told], add_special_tokens=False, return_tensors="pt", **sound)


def own(model: Any, given: Any, steps: int, **options: Any) -> Tensor:
    """Frames [1, S, K] that the class's generation adds, up to its end."""
    before = given["audio_input_ids"].shape[1] if "audio_input_ids" in given else 0
    return model.generate(**given, max_new_tokens=steps, **({"do_sample": False} | options))[:, before:]
