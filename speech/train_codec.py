"""Make the codec of mini speech: codes by k-means, and the decoder that turns them into sound.

    python speech/train_codec.py        (15 minutes on one CPU core)

Data: the Free Spoken Digit Dataset (MMSPEC_DATA/fsdd; CC BY-SA 4.0), joined into numbers, and sentences spoken by the program espeak-ng,
which must be installed. Everything made is kept in the work folder, and a stopped run goes on; delete the folder to start again.
"""

import json
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.minis import speech_data as spoken
from mmspec.speech.codecs.small import PatchCodec, PatchCodecConfig
from mmspec.speech.sound.audio import QUIET, logs
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.train.states.identity import keyed
from mmspec.utils.kmeans import kmeans
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader


def made_up() -> spoken.Spoken:
    """A few seconds of noise, for --smoke."""
    return [("one two", "theo", 0.1 * torch.randn(8000)) for _ in range(4)]


class Lesson(nn.Module):
    """The decoder against true magnitudes, bin by bin and band by band."""

    def __init__(self, codec: PatchCodec):
        super().__init__()
        self.codec = codec

    def forward(self, codes: Tensor, waves: Tensor) -> Tensor:
        config, length = self.codec.config, codes.shape[1] * self.codec.config.stack
        told = self.codec.magnitudes(codes)
        true = torch.stft(waves, config.window, config.hop, window=torch.hann_window(config.window), return_complex=True).abs()
        true = true[..., :length]  # [B, bins, frames]
        bands = [logs(self.codec.mel.mel_scale(x)) for x in (told.float().exp().transpose(1, 2), true)]
        return F.l1_loss(told, logs(true).transpose(1, 2)) + F.l1_loss(bands[0], bands[1])


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/speech"))
    parser.add_argument("--out", type=Path, help="default mmspec/minis/speech/codec")
    parser.add_argument("--count", type=int, default=2000, help="spoken numbers to learn from, and as many sentences")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny codec on noise")
    args = parser.parse_args()
    refuse_several_processes()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out = args.out or (args.work / "codec" if args.smoke else Path("mmspec/minis/speech/codec"))
    torch.manual_seed(0)
    config = PatchCodecConfig(codes=8, width=8) if args.smoke else PatchCodecConfig()
    args.steps = 2 if args.smoke else args.steps
    waves = [wave for _, _, wave in (made_up() if args.smoke else spoken.corpus(args.work / "sounds.pt", args.count, 0))]

    codec = PatchCodec(config)
    centres = keyed(args.work / "centres.pt", args.count, config.codes)
    if args.smoke or not centres.exists():
        points = torch.cat([codec.patches(wave) for wave in waves])
        points = points[torch.randperm(len(points))[:120_000]]
        torch.save(kmeans(points, config.codes), centres)
    codec.centres.copy_(torch.load(centres))
    codes = [codec.encode(wave) for wave in waves]
    length = 48

    def loss(example: nn.Module, step: int) -> Tensor:
        pick, rows, sounds = random.Random(step), [], []
        for _ in range(32):
            which = pick.randrange(len(waves))
            start = pick.randrange(max(1, len(codes[which]) - length))
            line, sound = codes[which][start : start + length], waves[which][start * config.samples :][: length * config.samples]
            rows.append(F.pad(line, (0, length - len(line)), value=int(codes[which][-1])))
            sounds.append(F.pad(sound, (0, length * config.samples - len(sound)), value=QUIET / 100))
        return example(torch.stack(rows), torch.stack(sounds))

    plan = Fit(steps=args.steps, lr=2e-3, warmup=50, checkpoint_every=500)
    losses = fit(Lesson(codec), loss, plan, args.work / "codec.pt", title="codec")
    codec.save(args.out)
    facts = {"codes": config.codes, "steps": args.steps, "nats a bin and a band, at the end": sum(losses[-50:]) / max(1, len(losses[-50:]))}
    (args.work / "codec.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    tell_loader(PatchCodec.load, args.out)


if __name__ == "__main__":
    run_recipe(main)
