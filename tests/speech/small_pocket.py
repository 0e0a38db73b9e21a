"""Small random Pocket TTSs and Phonons with a codec of 16 samples a frame, and the class's own generation from given noise."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import (
    GenerationConfig,
    GradiumPhononTTSConfig,
    GradiumPhononTTSForConditionalGeneration,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSFeatureExtractor,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
    PreTrainedTokenizerFast,
)

WIDTH, FRAME = 4, 16
"""Numbers of a latent, samples of a frame."""
WORDS, VOICE, LATENT, VOICE_START, START = 20, 20, 21, 22, 23
"""Text ids, and the ids of places in prompts."""
SETTINGS = {"do_sample": True, "temperature": 0.7, "eos_threshold": 1e9}


def pocket(seed: int = 0, layers: int = 2, width: int = 32, latents: int = WIDTH, gain: float = 2.5, **changes: Any) -> Any:
    """Strong enough that latents hang on what was said before them. It never ends by itself, until its `eos_threshold` is set."""
    torch.manual_seed(seed)
    head = {"hidden_size": 24, "num_hidden_layers": 2, "latent_dim": latents, "condition_dim": width, "frequency_embedding_size": 16}
    config = PocketTTSConfig(
        flow_head_config=head | changes.pop("head", {}),
        vocab_size=24,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=48,
        latent_dim=latents,
        pad_token_id=0,
        audio_prompt_token_id=VOICE,
        audio_latent_token_id=LATENT,
        audio_prompt_bos_token_id=VOICE_START,
        audio_bos_token_id=START,
        **changes,
    )
    return _alive(PocketTTSForConditionalGeneration(config), gain)


def phonon(seed: int = 0, width: int = 32, gain: float = 2.5) -> Any:
    torch.manual_seed(seed)
    config = GradiumPhononTTSConfig(
        flow_head_config={"hidden_size": 24, "num_hidden_layers": 2, "latent_dim": WIDTH, "condition_dim": width, "flow_type": "drifting"},
        vocab_size=24,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        latent_dim=WIDTH,
        pad_token_id=0,
        audio_prompt_dim=6,
        audio_prompt_token_id=VOICE,
        audio_latent_token_id=LATENT,
        audio_bos_token_id=START,
    )
    return _alive(GradiumPhononTTSForConditionalGeneration(config), gain)


def _alive(model: Any, gain: float) -> Any:
    for parameter in model.parameters():
        parameter.data.mul_(gain * 2 if parameter.dim() > 1 else 1)
    model.model.bos_latent.data.normal_()
    model.latent_mean.normal_()
    model.latent_std.uniform_(0.5, 2)
    model.generation_config = GenerationConfig(**SETTINGS)
    return model.eval()


def near(model: Any, by: float = 0.1, seed: int = 3) -> Any:
    """A model close to `model`, the scale of its latents included."""
    found = copy.deepcopy(model)
    torch.manual_seed(seed)
    for parameter in found.flow_head.parameters():
        parameter.data.add_(torch.randn_like(parameter) * by * parameter.std().nan_to_num(0))
    found.latent_mean.add_(0.05)
    found.latent_std.mul_(1.05)
    return found


def codec(latents: int = WIDTH) -> Any:
    torch.manual_seed(5)
    config = PocketTTSAudioTokenizerConfig(
        sampling_rate=200,
        hidden_size=16,
        num_filters=4,
        upsampling_ratios=[2, 2],
        latent_stride=4,
        upsample_groups=16,
        num_hidden_layers=1,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=20,
        latent_dim=latents,
    )
    return PocketTTSAudioTokenizerModel(config).eval()


def processor(sound: Any = None) -> Any:
    """Words w0, w1, ... and the class's own template."""
    ids = {"<pad>": 0, **{f"w{n}": n for n in range(1, WORDS)}, "<v>": VOICE, "<l>": LATENT, "<s>": VOICE_START, "<b>": START}
    letters = Tokenizer(models.WordLevel(ids, "<pad>"))
    letters.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = {"audio_prompt_token": "<v>", "audio_latent_token": "<l>", "audio_prompt_bos_token": "<s>", "audio_bos_token": "<b>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>", extra_special_tokens=named)
    template = (
        "{% for part in messages[0]['content'] %}{% if part['type'] == 'audio' %}<s><v>{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}<b>"
    )
    return PocketTTSProcessor(
        PocketTTSFeatureExtractor(sampling_rate=200), tokenizer, codec() if sound is None else sound, chat_template=template
    )


def prompts(rows: int = 3, voice: bool = True, seed: int = 0, width: int = WIDTH, phonon: bool = False) -> dict[str, Tensor]:
    """Of 9, 7, 5, ... ids padded on the left, the first behind a voice of 3 frames, the next of 2, the next of 1, ..."""
    torch.manual_seed(seed)
    lines, voices = [], []
    for row in range(rows):
        frames = max(1, 3 - row) if voice else 0
        words = torch.randint(1, WORDS, (5 - row % 3,))
        front = torch.tensor([VOICE_START] * (voice and not phonon) + [VOICE] * frames, dtype=torch.long)
        lines.append(torch.cat([front, words, torch.tensor([START])]))
        voices.append(torch.randn(frames, width))
    most = max(map(len, lines))
    ids = torch.stack([F.pad(line, (most - len(line), 0)) for line in lines])
    mask = torch.stack([F.pad(torch.ones_like(line), (most - len(line), 0)) for line in lines])
    inputs = {"input_ids": ids, "attention_mask": mask, "frames_after_eos": torch.tensor([row % 3 for row in range(rows)])}
    if voice:
        inputs["audio_prompt_latents"] = torch.nn.utils.rnn.pad_sequence(voices, batch_first=True)
        inputs["audio_prompt_latents_mask"] = torch.nn.utils.rnn.pad_sequence([torch.ones(len(v)) for v in voices], batch_first=True).long()
    return inputs


def row_of(inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """One prompt of a batch, its padding kept."""
    return {name: value[row : row + 1] for name, value in inputs.items()}


@torch.no_grad()
def generated(model: Any, inputs: Mapping[str, Tensor], noise: Tensor, frames: int, **options: Any) -> list[Tensor]:
    """Latents [T, d] of every row by the class's own generation, fed `noise` [B, T, d] of deviation 1."""
    own, step = model.sample_latent, iter(range(frames))

    def fed(condition: Tensor, drawn: Tensor, steps: int) -> Tensor:
        temperature = options.get("temperature", SETTINGS["temperature"]) if options.get("do_sample", True) else 0
        return own(condition, noise[:, next(step)] * temperature**0.5, steps)

    model.sample_latent = fed
    try:
        return model.generate(**inputs, max_new_tokens=frames, **options)
    finally:
        del model.sample_latent
