"""Train heads that draft for Whisper on what it writes down itself: latent expansion or independent projections (Raj et al. 2024).

    python speech/fetch_whisper.py && python speech/speak_sentences.py build/spoken --count 900
    python speech/train_heads.py latent --model ~/.cache/mmspec/models/whisper-tiny.en --recordings build/spoken
    mmspec transcribe talk.flac --model ~/.cache/mmspec/models/whisper-tiny.en --drafter build/heads/latent

The recordings are transcribed greedily, every second chunk of them with timestamps; the decoder's states are recorded as it writes, and the
heads learn the sum of the cross-entropies of the next tokens. Whisper is not changed. Of its vocabulary the values that it wrote most are
drafted. Stages are resumed; delete --work to start again. Any kind of drafter that reads the target's last state can be trained.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mmspec.commands.transcribe import sounds_in
from mmspec.drafters.checkpoints.load import check_drafter_folder, load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train
from mmspec.loading.hearing import load_transcriber
from mmspec.run.request import Request
from mmspec.speech.recognition.decoding import RecognitionDecoding
from mmspec.speech.recognition.whisper import features_of
from mmspec.speech.sound.audio import read_sound
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, acceptance_text
from mmspec.train.held_out import array_keys, file_keys, hold_out
from mmspec.train.parallel import refuse_several_processes
from mmspec.train.record import record_written
from mmspec.train.states.disk import STATE_DTYPES
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command, tell_loader

KINDS = ("latent", "independent", "medusa", "hydra", "recurrent", "amphista")


class Transcribing:
    """Transcribes chunks of recordings, and keeps what Whisper's decoder was given and what it wrote."""

    def __init__(self, model: Any, processor: Any, sounds: Sequence[Any], rows: int, width: int):
        self.model, self.processor, self.sounds, self.rows, self.width = model, processor, sounds, rows, width
        self.found: list[tuple[Mapping[str, Any], Tensor, Tensor]] = []

    def __call__(self, first: int, end: int) -> tuple[Mapping[str, Any], Tensor, Tensor]:
        """Return inputs, answers and their lengths, for `record_written`."""
        extractor, self.found = self.processor.feature_extractor, []
        waves = [each if isinstance(each, Tensor) else read_sound(each, extractor.sampling_rate) for each in self.sounds[first:end]]
        for wave, name in zip(waves, self.sounds[first:end], strict=True):
            if len(wave) > extractor.n_samples:
                raise ValueError(f"{name} is longer than the window of {extractor.n_samples / extractor.sampling_rate:.0f} s: cut it")
        features, mask = features_of(extractor, waves)
        decoding = RecognitionDecoding(Request.of(drafter=None), on_window=self._keep)
        times = first // self.rows % 2 == 1
        with torch.no_grad():
            self.model.generate(features, attention_mask=mask, custom_generate=decoding, return_timestamps=times, temperature=0.0)
        return self.found[0]

    def _keep(self, model: Any, inputs: Mapping[str, Any], sequences: Tensor) -> None:
        answers, end = sequences[:, inputs["decoder_input_ids"].shape[1] : self.width], model.generation_config.eos_token_id
        before = (answers == end).cumsum(1)
        self.found.append((inputs, answers, ((before == 0).sum(1) + 1).clamp(max=answers.shape[1])))


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument("kind", nargs="?", default="latent", choices=KINDS)
    parser.add_argument("--model", default="openai/whisper-tiny.en", help="a Whisper's folder or name")
    parser.add_argument("--recordings", type=Path, nargs="+", help="files or folders; each recording fits Whisper's window")
    parser.add_argument("--work", type=Path, default=Path("build/heads"), help="states, shared by all kinds, and checkpoints")
    parser.add_argument("--out", type=Path, help="default: WORK/KIND")
    parser.add_argument("--options", type=dict, default={}, help='of the drafter class, as JSON, such as {"heads": 6}')
    parser.add_argument("--values", type=int, least=0, default=8192, help="latent, independent: values that are drafted at most; 0 for all")
    parser.add_argument("--loss", type=dict, default={"ce": 1.0}, help='such as {"kl": 1}; default: cross-entropy')
    parser.add_argument("--width", type=int, default=192, help="values of a decoder's prompt and text; the rest is cut off")
    parser.add_argument("--states", choices=STATE_DTYPES, default="bfloat16", help="dtype of the states on disk")
    parser.add_argument("--chunk", type=int, default=8, help="recordings transcribed together")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=16, help="recordings a step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--precision", choices=("no", "bf16", "fp16"), default="no")
    parser.add_argument("--smoke", action="store_true", help="a tiny random Whisper that hears noise, two steps")
    args = parser.parse_args()
    if not args.smoke and args.recordings is None:
        parser.error("no recordings: give --recordings FOLDER, such as what speech/speak_sentences.py makes")
    return args


def made_up() -> tuple[Any, Any, list[Tensor]]:
    """A random Whisper that hears a second at a time, and noise for it."""
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    sizes: dict[str, Any] = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 16}
    sizes |= {"max_source_positions": 50, "max_target_positions": 40}
    ends: dict[str, Any] = {"pad_token_id": 60, "bos_token_id": 60, "eos_token_id": 60, "decoder_start_token_id": 61}
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=120, **sizes, **ends, suppress_tokens=None)).eval()
    asked: dict[str, Any] = {"no_timestamps_token_id": 62, "is_multilingual": False, "return_timestamps": False, "max_length": 40}
    model.generation_config = GenerationConfig(**ends, **asked, begin_suppress_tokens=[60])
    sounds = [0.1 * torch.randn(6_000 + 500 * number) for number in range(8)]
    return model, SimpleNamespace(feature_extractor=WhisperFeatureExtractor(feature_size=16, chunk_length=1)), sounds


def run(args: argparse.Namespace) -> None:
    check_drafter_folder(args.out or args.work / args.kind)
    torch.manual_seed(0)
    if args.smoke:
        model, processor, sounds = made_up()
        args.chunk, args.rows, args.steps, args.width, args.values = 2, 2, 2, 40, 64
    else:
        pair, sounds = load_transcriber(args.model, device="cpu"), sounds_in([str(each) for each in args.recordings])[0]
        model, processor = pair.target, pair.processor
        if model.config.model_type != "whisper":
            raise ValueError(f"{args.model} is a {model.config.model_type}: heads are trained here for Whisper only")
    model = model.requires_grad_(False)
    keys = array_keys(sounds) if args.smoke else file_keys(sounds)
    split = hold_out(keys, max(args.rows, len(sounds) // 16), "recordings")
    sounds, held = [sounds[number] for number in split.order], len(split.held)
    write = Transcribing(model, processor, sounds, args.chunk, args.width)
    data = record_written(model, write, len(sounds), (-1,), args.work / "states", args.width, args.chunk, args.states)
    every = data.window(range(held, len(data)))
    written = every.ids[every.own]
    drafted = min(args.values, len(written.unique())) if args.kind in KINDS[:2] and args.values else None
    net = begin_training(net_to_train(args.kind, model, args.options, drafted), model, written)
    example = DistillationLoss(net, model, Aim(depth=net.most, distributions=args.loss, decay=1.0, summed=True))
    draw, out = partial(data.draw, rows=args.rows, first=held), args.out or args.work / args.kind
    plan = Fit(steps=args.steps, lr=args.lr, checkpoint_every=max(1, args.steps // 10), mixed_precision=args.precision, weight_decay=0.0)

    def validate(module: Any, step: int) -> None:
        print(f"step {step}: held-out acceptance {acceptance_text(module.acceptance(data.window(range(held)).trimmed()))}", flush=True)

    told = {"title": args.kind, "validate": validate, "held": split}
    fit(example, lambda m, turn: m(draw(turn).trimmed()), plan, args.work / f"{args.kind}.pt", **told)
    save_drafter(example.net, out)
    print(f"{out}: {sum(each.numel() for each in example.net.parameters()):,} parameters; {len(written):,} tokens of training text")
    if args.smoke:  # there is no folder of the random Whisper
        tell_loader(load_drafter, out)
    else:
        tell_command("mmspec", "transcribe", sounds[0], "--model", args.model, "--drafter", out)


if __name__ == "__main__":
    refuse_several_processes()
    run_recipe(lambda: run(parsed()))
