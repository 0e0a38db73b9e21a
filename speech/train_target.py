"""Make the target of mini speech from nothing: a Llama that writes a voice's codec codes behind the letters of a text.

    python speech/train_target.py        (half an hour on one CPU core)

Data: the Free Spoken Digit Dataset (MMSPEC_DATA/fsdd; CC BY-SA 4.0), joined into numbers, and sentences spoken by the program espeak-ng,
which must be installed. The codec is read from OUT/codec (speech/train_codec.py). A stopped run goes on; delete the work folder to
start again.
"""

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.minis import speech_data as spoken
from mmspec.minis.char_tokenizer import FIRST_CODE, TEMPLATE, letter_tokenizer
from mmspec.minis.weights import save_llama
from mmspec.speech.codecs.small import PatchCodec, PatchCodecConfig
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes

SIZES = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 512}
POSITIONS = 640


@dataclass(frozen=True)
class Lines:
    """What there is to learn: ids of prompt, codes and end, and how many of them are the prompt."""

    ids: list[Tensor]
    prompts: list[int]


def lines(found: spoken.Spoken, codec: PatchCodec) -> Lines:
    tokenizer = letter_tokenizer()
    prompts = [tokenizer(TEMPLATE.format(voice=voice, text=text))["input_ids"] for text, voice, _ in found]
    end = torch.tensor([tokenizer.eos_token_id])
    codes = [codec.encode(wave) + FIRST_CODE for _, _, wave in found]
    ids = [torch.cat([torch.tensor(prompt), code, end]) for prompt, code in zip(prompts, codes, strict=True)]
    return Lines([line.to(torch.int16) for line in ids], [len(prompt) for prompt in prompts])


def read(kept: Path, sounds: Path, count: int, seed: int, split: str, codec: PatchCodec) -> Lines:
    """Lines of a split, made once and kept."""
    if not kept.exists():
        made = lines(spoken.corpus(sounds, count, seed, split), codec)
        torch.save((made.ids, made.prompts), kept)
    return Lines(*torch.load(kept))


def made_up() -> Lines:
    """A few lines of noise, for --smoke."""
    return lines([("one two", "theo", 0.1 * torch.randn(2000))] * 4, PatchCodec(PatchCodecConfig(codes=8, width=8)))


def batch(found: Lines, chosen: list[int]) -> tuple[Tensor, Tensor]:
    """Ids [B, S] padded on the right, and the targets: -100 for prompts and padding, as they are never generated."""
    rows = [found.ids[index].long() for index in chosen]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    goal = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    for row, index in enumerate(chosen):
        goal[row, : found.prompts[index]] = -100
    return ids, goal


def alike(found: Lines, pick: random.Random, rows: int) -> list[int]:
    """Lines of about the same length: the best of many, around one drawn at random."""
    pool = sorted((pick.randrange(len(found.ids)) for _ in range(8 * rows)), key=lambda index: len(found.ids[index]))
    start = pick.randrange(len(pool) - rows + 1)
    return pool[start : start + rows]


def nats(model: nn.Module, ids: Tensor, goal: Tensor) -> Tensor:
    """Mean cross-entropy of the codes and the end."""
    return F.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1).float(), goal[:, 1:].flatten(), ignore_index=-100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/speech"))
    parser.add_argument("--out", type=Path, help="default mmspec/minis/speech")
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    parser.add_argument("--width", type=int, default=SIZES["hidden_size"])
    parser.add_argument("--count", type=int, default=9000, help="spoken numbers to learn from, and as many sentences")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--dropout", type=float, default=0.1, help="of attention")
    parser.add_argument("--precision", default="bf16", help="bf16 or no")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model on noise")
    args = parser.parse_args()
    refuse_several_processes()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out = args.out or (args.work if args.smoke else Path("mmspec/minis/speech"))
    torch.manual_seed(0)
    if args.smoke:
        args.layers, args.width, args.rows, args.steps, examples = 1, 32, 2, 2, made_up()
        held = examples
    else:
        codec = PatchCodec.load(args.out / "codec")
        examples = read(args.work / "lines.pt", args.work / "spoken.pt", args.count, 1, "train", codec)
        held = read(args.work / "held.pt", args.work / "held-spoken.pt", 200, 2, "test", codec)
    sizes = SIZES | {"num_hidden_layers": args.layers, "hidden_size": args.width, "intermediate_size": args.width * 8 // 3 // 16 * 16}
    config = LlamaConfig(
        vocab_size=FIRST_CODE + 1024,
        max_position_embeddings=POSITIONS,
        attention_dropout=args.dropout,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
        **sizes,
    )
    model = LlamaForCausalLM(config)

    def loss(model: nn.Module, step: int) -> Tensor:
        return nats(model, *batch(examples, alike(examples, random.Random(step), args.rows)))

    @torch.no_grad()
    def held_out(model: nn.Module, step: int) -> dict[str, float]:
        halves = {"numbers": range(len(held.ids) // 2), "sentences": range(len(held.ids) // 2, len(held.ids))}
        facts = {f"nats a code, held-out {name}": nats(model, *batch(held, list(some))).item() for name, some in halves.items()}
        print(step, json.dumps(facts), flush=True)
        return facts

    plan = Fit(steps=args.steps, lr=2e-3, warmup=100, checkpoint_every=250, mixed_precision=args.precision)
    fit(model, loss, plan, args.work / "target.pt", title="target", validate=held_out)
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "steps": args.steps, **held_out(model, args.steps)}
    save_llama(model, args.out / "target")
    letter_tokenizer().save_pretrained(args.out)
    (args.work / "target.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
