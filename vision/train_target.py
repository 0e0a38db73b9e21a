"""Make a target of mini vision from nothing: a LlamaGen over the codes of its tokenizer, trained for classifier-free guidance.

    python vision/train_target.py --set emoji        (50 minutes on one CPU core; --set fashion: 45 minutes)

Data (MMSPEC_DATA, default ../shared/data): Fashion-MNIST (MIT), written by class; Noto emoji at 64x64 (Apache-2.0), written from captions
that a small T5 encoder reads, which is trained along. Every tenth picture lacks its class or caption, so that guidance has something to
lean on. The tokenizer is read from OUT/tokenizer (vision/train_tokenizer.py). A stopped run goes on; delete the work folder to start again.
"""

import argparse
import json
import os
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from mmspec.minis import pictures
from mmspec.minis.captions import captions_of, text_tokenizer
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen, TrainedTogether

SETS = {
    "fashion": {"sizes": {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 352}, "rows": 64},
    "emoji": {"sizes": {"hidden_size": 160, "num_hidden_layers": 6, "num_attention_heads": 5, "intermediate_size": 448}, "rows": 32},
}
LENGTH, WIDTH, VERSIONS, DROPPED = 16, 64, 24, 0.1


@dataclass(frozen=True)
class DistillationTargets:
    """Token tables and what each picture is written from: a class number, or texts of which one is drawn."""

    codes: Tensor  # [N, versions, T]
    held_codes: Tensor  # [M, T]
    conditions: list
    held_conditions: list


def read(name: str, folder: Path, kept: Path) -> DistillationTargets:
    """The token tables of a set, by the tokenizer in `folder`; made once and `kept`."""
    if not kept.exists():
        torch.save(asdict(tables(name, folder)), kept)
    return DistillationTargets(**torch.load(kept))


def tables(name: str, folder: Path) -> DistillationTargets:
    data, model = Path(os.environ.get("MMSPEC_DATA", "../shared/data")), tokens.load_tokenizer(folder)
    if name == "fashion":
        (shown, classes), (held, held_classes) = pictures.fashion(data), pictures.fashion(data, "test")
        mirror = np.isin(classes, (0, 1, 2, 3, 4, 6, 8))  # shoes all look one way
        codes = torch.cat([tokens.encode_all(model, shown, versions=1), tokens.encode_all(model, shown[:, :, ::-1], versions=1)], 1)
        codes[~mirror, 1] = codes[~mirror, 0]
        return DistillationTargets(codes, tokens.encode_all(model, held)[:, 0], classes.tolist(), held_classes.tolist())
    shown, rows = pictures.emoji(data)
    held = pictures.held_out(len(rows))
    kept = [row for row, out in zip(rows, held, strict=True) if not out]
    codes = tokens.encode_all(model, shown[~held], versions=VERSIONS, mirror=np.array([pictures.may_mirror(row) for row in kept]))
    out = [row["name"].lower() for row, out in zip(rows, held, strict=True) if out]
    return DistillationTargets(codes, tokens.encode_all(model, shown[held])[:, 0], [captions_of(row) for row in kept], out)


def made_up(name: str) -> DistillationTargets:
    """A few random pictures, for --smoke."""
    table = torch.randint(256, (8, 2, 196 if name == "fashion" else 256)).to(torch.int16)
    conditions: list = list(range(8)) if name == "fashion" else [["red apple", "a red apple"]] * 8
    return DistillationTargets(table, table[:4, 0], conditions, conditions[:4] if name == "fashion" else ["red apple"] * 4)


def make(name: str, examples: DistillationTargets, sizes: dict) -> TrainedTogether:
    if name == "fashion":
        labels = dict(enumerate(pictures.FASHION))
        return TrainedTogether(LlamaGen(LlamaGenConfig(vocab_size=256, grid=14, classes=10, id2label=labels, **sizes)))
    texts = [text for some in examples.conditions for text in some]
    tokenizer = text_tokenizer(texts)
    t5 = T5Config(vocab_size=len(tokenizer), d_model=WIDTH, d_kv=16, d_ff=128, num_layers=2, num_heads=4, is_encoder_decoder=False)
    config = LlamaGenConfig(vocab_size=512, grid=16, condition="caption", caption_width=WIDTH, prefix=LENGTH, dropout=0.1, **sizes)
    return TrainedTogether(LlamaGen(config), T5EncoderModel(t5), tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="fashion")
    parser.add_argument("--work", type=Path, help="default build/target-SET")
    parser.add_argument("--out", type=Path, help="default mmspec/minis/vision/SET")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--precision", default="bf16", help="bf16 or no")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model on random codes")
    args = parser.parse_args()
    refuse_several_processes()
    args.work, args.out = args.work or Path(f"build/target-{args.set}"), args.out or Path(f"mmspec/minis/vision/{args.set}")
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    sizes, rows = SETS[args.set]["sizes"], SETS[args.set]["rows"]
    if args.smoke:
        sizes, rows, args.steps, args.out = {**sizes, "num_hidden_layers": 1}, 2, 2, args.work / "mini"
    examples = made_up(args.set) if args.smoke else read(args.set, args.out / "tokenizer", args.work / "tokens.pt")
    writer = make(args.set, examples, sizes)

    def loss(example: nn.Module, step: int) -> Tensor:
        pick = random.Random(step)
        chosen = [(pick.randrange(examples.codes.shape[0]), pick.randrange(examples.codes.shape[1])) for _ in range(rows)]
        given = [examples.conditions[n] for n, _ in chosen]
        given = given if args.set == "fashion" else [pick.choice(texts) for texts in given]
        codes = torch.stack([examples.codes[n, version] for n, version in chosen]).long()
        return example(codes, given, torch.tensor([pick.random() < DROPPED for _ in chosen])).mean()

    @torch.no_grad()
    def held_out(example: nn.Module, step: int) -> dict[str, float]:
        some = slice(0, 256)
        codes, given = examples.held_codes[some].long(), examples.held_conditions[some]
        told, untold = (example(codes, given, torch.full((len(codes),), without)).mean().item() for without in (False, True))
        facts = {"nats a code, held out": told, "the same from nothing": untold}
        print(step, json.dumps(facts), flush=True)
        return facts

    plan = Fit(steps=args.steps, lr=2e-3, warmup=100, checkpoint_every=300, mixed_precision=args.precision)
    fit(writer, loss, plan, args.work / "checkpoint.pt", title=args.set, validate=held_out)
    facts = {"parameters": sum(p.numel() for p in writer.parameters()), "steps": args.steps, **held_out(writer, args.steps)}
    for part, model in (("target", writer.target), ("captions", writer.encoder)):
        if model is not None:
            model.half().save_pretrained(args.out / part)
    if writer.tokenizer is not None:
        writer.tokenizer.save_pretrained(args.out / "captions")
    (args.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
