"""Make the recogniser that scores mini speech: the words of its numbers and sentences, from true sound and from the codec's.

    python speech/train_recogniser.py        (15 minutes on one CPU core)

Data: as `speech/train_target.py` makes it, in the same work folder; the codec is read from OUT/codec. A stopped run goes on.
"""

import json
import random
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.minis import speech_data as spoken
from mmspec.speech.codecs.small import PatchCodec
from mmspec.speech.sound.recogniser import Recogniser, RecogniserConfig, word_errors
from mmspec.train import Fit, fit
from mmspec.train.held_out import apart, array_keys
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader

Heard = list[tuple[Tensor, str]]


def examples(model: Recogniser, sounds: spoken.Spoken, codec: PatchCodec | None, share: float = 0.5) -> Heard:
    """Features and texts; a share of the sounds has been through the codec."""
    through = random.Random(0)
    made = []
    for text, _, wave in sounds:
        wave = codec.decode(codec.encode(wave)) if codec is not None and through.random() < share else wave
        made.append((model.features(wave).half(), text))
    return made


def batch(found: Heard, words: tuple[str, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features [B, bands, frames], their frames; words [sum], their counts."""
    features = nn.utils.rnn.pad_sequence([each.float().T for each, _ in found], batch_first=True).transpose(1, 2)
    goals = [[words.index(word) for word in text.split()] for _, text in found]
    frames = torch.tensor([(each.shape[1] + 1) // 2 for each, _ in found])
    return features, frames, torch.tensor([word for goal in goals for word in goal]), torch.tensor([len(goal) for goal in goals])


def score(model: Recogniser, sounds: spoken.Spoken) -> float:
    """Share of words that come out wrong."""
    heard = [model.hear(wave) for _, _, wave in sounds]
    return sum(word_errors([text for text, _, _ in sounds], heard)) / sum(len(text.split()) for text, _, _ in sounds)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/speech"))
    parser.add_argument("--out", type=Path, help="default mmspec/minis/speech")
    parser.add_argument("--count", type=int, default=2500, help="spoken numbers to learn from, and as many sentences")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny recogniser on noise")
    args = parser.parse_args()
    refuse_several_processes()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out = args.out or (args.work if args.smoke else Path("mmspec/minis/speech"))
    torch.manual_seed(0)
    words = spoken.all_words()
    if args.smoke:
        sounds = [("one two", "theo", 0.1 * torch.randn(8000)) for _ in range(4)]
        held, codec, args.steps, sizes = [("three", "theo", 0.1 * torch.randn(8000)) for _ in range(4)], None, 2, {"width": 8, "layers": 1}
    else:
        sounds = spoken.corpus(args.work / "recogniser.pt.sounds", args.count, 3)
        held, codec, sizes = spoken.corpus(args.work / "held-spoken.pt", 200, 2, "test"), PatchCodec.load(args.out / "codec"), {}
    split = apart(*(array_keys(wave for _, _, wave in part) for part in (sounds, held)), "recordings")
    held = [held[number] for number in split.held]
    model = Recogniser(RecogniserConfig(words, **sizes))
    found, true = examples(model, sounds, codec), nn.CTCLoss(blank=len(words), zero_infinity=True)

    def loss(model: nn.Module, step: int) -> Tensor:
        pick = random.Random(step)
        features, frames, goal, counts = batch([found[pick.randrange(len(found))] for _ in range(16)], words)
        features = features * (0.8 + 0.4 * pick.random()) + 0.2 * torch.randn(features.shape, generator=torch.Generator().manual_seed(step))
        told = model(features).float().log_softmax(-1).transpose(0, 1)
        return true(told, goal, frames.clamp(max=len(told)), counts)

    fit(model, loss, Fit(steps=args.steps, lr=2e-3, checkpoint_every=250), args.work / "recogniser.pt", title="recogniser")
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "steps": args.steps}
    for name, some in (("numbers", held[: len(held) // 2]), ("sentences", held[len(held) // 2 :])):
        facts[f"word errors, held-out {name}"] = score(model, some)
        if codec is not None:
            coded = [(text, voice, codec.decode(codec.encode(wave))) for text, voice, wave in some]
            facts[f"word errors, held-out {name}, through the codec"] = score(model, coded)
    model.save(args.out / "recogniser")
    (args.work / "recogniser.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    tell_loader(Recogniser.load, args.out / "recogniser")


if __name__ == "__main__":
    run_recipe(main)
