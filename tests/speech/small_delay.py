"""Small random models of delayed books, fp32, seeded, lively enough that greedy rows change; their own generation; distributions along a
path."""

from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers as hf
from torch import Tensor

from mmspec.core.processors.pipeline import pipeline
from mmspec.models.guidance import Pairs
from mmspec.models.target import HFTarget
from mmspec.speech import Speech, synthesize
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.delayed_codebooks import DelayModel
from mmspec.speech.families.dia import Dia
from mmspec.speech.families.musicgen import Musicgen

STEPS, RATE = 24, 1024
TEXTS = ["[S1] hi there", "[S2] no", "[S1] three five seven"]


def lively(model: Any, by: float) -> Any:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * by)
    return model.eval()


class Mute:
    """A codec for tests of distributions, which need many rows and no sound."""

    rate = pace = RATE // 4

    def stream(self) -> "Mute":
        return self

    def push(self, steps: list) -> Any:
        return iter(())

    def close(self) -> Any:
        return iter(())


# --- Dia --------------------------------------------------------------------------------------------------------------


def dac(books: int, codes: int) -> Any:
    torch.manual_seed(0)
    ratios = {"downsampling_ratios": [2, 2], "upsampling_ratios": [2, 2]}
    sizes = {"encoder_hidden_size": 8, "decoder_hidden_size": 16, "codebook_dim": 4}
    return hf.DacModel(hf.DacConfig(n_codebooks=books, codebook_size=codes, sampling_rate=RATE, **ratios, **sizes)).eval()


def dia_network(layers: int = 2, hidden: int = 32, seed: int = 0, delays: tuple[int, ...] = (0, 2, 3), codes: int = 16) -> Any:
    """Ids behind the codes: the end, padding, the start, and one that stands for nothing."""
    torch.manual_seed(seed)
    sizes = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    encoder = {**sizes, "max_position_embeddings": 40, "intermediate_size": 32, "vocab_size": 256}
    cross = {"cross_num_attention_heads": 2, "cross_head_dim": 8, "cross_num_key_value_heads": 2, "cross_hidden_size": 24}
    special = {"eos_token_id": codes, "pad_token_id": codes + 1, "bos_token_id": codes + 2, "vocab_size": codes + 4}
    decoder = {**cross, **special, "num_hidden_layers": layers, "hidden_size": hidden, "head_dim": 8, "num_attention_heads": 4}
    decoder |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 120, "num_channels": len(delays)}
    config = hf.DiaConfig(encoder_config=encoder, decoder_config=decoder, delay_pattern=list(delays))
    return lively(hf.DiaForConditionalGeneration(config), 0.15)


def dia(mute: bool = False, **changes: Any) -> Dia:
    network = dia_network(**changes)
    codec = Mute() if mute else dac(len(network.config.delay_pattern), network.config.decoder_config.eos_token_id)
    return Dia(network, hf.DiaTokenizer(), codec)


@cache
def dia_target() -> Dia:
    return dia()


@cache
def dia_drafter() -> Dia:
    return dia(layers=1, hidden=16, seed=5)


def dia_folder(home: Path, **extractor: Any) -> str:
    """`dia_target` in the published layout: its processor names the codec's own folder."""
    dia_target().model.save_pretrained(home / "model")
    dia_target().codec.model.save_pretrained(home / "codec")
    listens = hf.DiaFeatureExtractor(sampling_rate=RATE, **extractor)
    hf.DiaProcessor(listens, hf.DiaTokenizer(), hf.DacModel.from_pretrained(home / "codec")).save_pretrained(home / "model")
    return str(home / "model")


def dia_inputs(texts: list[str], delays: tuple[int, ...], start: int, pad: int) -> dict[str, Tensor]:
    """What DiaProcessor prepares: the text, and where each book starts."""
    told = hf.DiaTokenizer()(texts, padding=True, return_tensors="pt")
    begun = torch.full((len(texts), max(delays) + 1, len(delays)), pad)
    for book, delay in enumerate(delays):
        begun[:, : delay + 1, book] = start
    text = {"inputs": told["input_ids"], "attention_mask": told["attention_mask"]}
    return text | {"decoder_input_ids": begun, "decoder_attention_mask": torch.ones(begun.shape[:2])}


def dia_own(adapter: Dia, texts: list[str], **options: Any) -> Any:
    inputs = dia_inputs(texts, adapter.delays, adapter.start, adapter.pad)
    return adapter.model.generate(**inputs, max_new_tokens=STEPS, **options)


# --- MusicGen ---------------------------------------------------------------------------------------------------------


def musicgen_network(
    layers: int = 2, hidden: int = 32, seed: int = 0, books: int = 3, codes: int = 16, channels: int = 1, melody: bool = False
) -> Any:
    torch.manual_seed(seed)
    text = hf.T5Config(vocab_size=60, d_model=24, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    codec = {"hidden_size": 8, "num_filters": 4, "num_residual_layers": 1, "upsampling_ratios": [2, 2], "codebook_dim": 8}
    codec |= {"kernel_size": 3, "last_kernel_size": 3, "num_lstm_layers": 1, "codebook_size": codes}
    bits = (codes - 1).bit_length() * books // channels * RATE / 4 / 1000
    sound = hf.EncodecConfig(sampling_rate=RATE, target_bandwidths=[bits], **codec)
    sizes = {"max_position_embeddings": 16, "num_hidden_layers": layers, "ffn_dim": 48, "num_attention_heads": 4, "hidden_size": hidden}
    sizes |= {"vocab_size": codes, "num_codebooks": books, "pad_token_id": codes, "bos_token_id": codes, "audio_channels": channels}
    decoder = (hf.MusicgenMelodyDecoderConfig if melody else hf.MusicgenDecoderConfig)(**sizes)
    parts = {"text_encoder": text.to_dict(), "audio_encoder": sound.to_dict(), "decoder": decoder.to_dict()}
    if melody:
        config = hf.MusicgenMelodyConfig(**parts, num_chroma=12, chroma_length=5)
        model = lively(hf.MusicgenMelodyForConditionalGeneration(config), 0.4)
    else:
        model = lively(hf.MusicgenForConditionalGeneration(hf.MusicgenConfig(**parts)), 0.4)
    for layer in model.audio_encoder.quantizer.layers:
        torch.nn.init.normal_(layer.codebook.embed)  # else every code sounds alike
    model.generation_config.decoder_start_token_id = model.generation_config.pad_token_id = codes
    return model


def musicgen(mute: bool = False, **changes: Any) -> Musicgen:
    """Positions are few: longer rows must do without a table of them."""
    return Musicgen(musicgen_network(**changes), codec=Mute() if mute else None)


def music_prompts(rows: int = 3) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    lengths = [5, 3, 7, 2, 6, 4, 8, 3][:rows]
    return [{"input_ids": torch.randint(2, 60, (1, length), generator=generator)} for length in lengths]


def musicgen_own(adapter: Musicgen, prompts: list[dict[str, Tensor]], **options: Any) -> tuple[Tensor, Tensor]:
    """Codes [B, F, K] and sound [B, samples]."""
    lengths = [prompt["input_ids"].shape[1] for prompt in prompts]
    ids = torch.nn.utils.rnn.pad_sequence([prompt["input_ids"][0] for prompt in prompts], batch_first=True)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    codec, seen = adapter.model.audio_encoder, []
    with patch.object(codec, "decode", side_effect=lambda codes, **rest: seen.append(codes) or type(codec).decode(codec, codes, **rest)):
        sound = adapter.model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=STEPS, **options)
    return seen[0][0].transpose(1, 2), sound[:, 0]


# --- both -------------------------------------------------------------------------------------------------------------


def say(adapter: DelayModel, prompts: Any, drafter: Any = None, steps: int = STEPS, **options: Any) -> Speech:
    return synthesize(adapter, prompts, drafter, max_seconds=(steps - adapter.lead) / adapter.pace, **options)


def target_of(adapter: DelayModel, prompts: Any, sampling: SpeechSampling, steps: int = STEPS, rules: bool = True) -> tuple[Any, Any]:
    """The target `synthesize` makes, and its prompt."""
    first = (*adapter.closing(steps), *adapter.rules(None)) if rules else ()
    distributions = pipeline(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, first=first)
    prompt = adapter.encode(prompts, [None] * len(prompts))
    if sampling.guidance is None:
        return HFTarget(adapter.model, adapter, distributions), prompt
    return Pairs(HFTarget(adapter.model, adapter, adapter.guided(distributions.steps, sampling))), adapter.paired(prompt)


def distributions_along(
    adapter: DelayModel, prompts: Any, frames: Tensor, sampling: SpeechSampling, stepwise: bool = False, **how: Any
) -> Tensor:
    """Scores [B, N + 1, K, V] before, between and behind `frames` [B, N, K], in one forward or one by one."""
    target, prompt = target_of(adapter, prompts, sampling, **how)
    session, draft = target.begin(prompt)
    budget, found = torch.full((len(prompts),), 1000), []
    for frame in frames.unbind(1) if stepwise else ():
        found.append(session.score(draft).p.heads)
        draft = draft.extend_chain(frame[:, None], budget)
    draft = draft if stepwise else draft.extend_chain(frames, budget)
    return torch.cat([*found, session.score(draft).p.heads], 1)


def first_frames(adapter: DelayModel, prompt: Any, count: int, sampling: SpeechSampling) -> dict[tuple, float]:
    """The distribution of a row's first `count` frames, by enumeration."""
    paths = {(): 1.0}
    for _ in range(count):
        frames = torch.tensor(list(paths), dtype=torch.long).view(len(paths), -1, len(adapter.delays))
        probs = distributions_along(adapter, [prompt] * len(paths), frames, sampling)[:, -1].double().softmax(-1)
        grown = {}
        for (path, mass), books in zip(paths.items(), probs, strict=True):
            joint = books[0]
            for book in books[1:]:
                joint = joint[..., None] * book
            for frame in joint.nonzero().tolist():
                grown[(*path, *frame)] = mass * float(joint[tuple(frame)])
        paths = grown
    return paths
