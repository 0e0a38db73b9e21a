"""Make the target of mini speech from nothing: a Llama that writes a voice's codec codes behind the letters of a text.

    python speech/train_target.py        (half an hour on one CPU core)

Data: the Free Spoken Digit Dataset (MMSPEC_DATA/fsdd; CC BY-SA 4.0), joined into numbers, and sentences spoken by the program espeak-ng,
which must be installed. The codec is read from OUT/codec (speech/train_codec.py). A stopped run goes on; delete the work folder to
start again.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.minis.char_tokenizer import FIRST_CODE, letter_tokenizer
from mmspec.minis.speech_lines import held_out_nats, nats, noise_lines, read_lines
from mmspec.minis.weights import save_llama
from mmspec.speech.codecs.small import PatchCodec, PatchCodecConfig
from mmspec.train import Fit, fit
from mmspec.train.held_out import apart
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

SIZES = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 512}
POSITIONS = 640


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/speech"))
    parser.add_argument("--out", type=Path, help="default mmspec/minis/speech")
    parser.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    parser.add_argument("--width", type=int, default=SIZES["hidden_size"])
    parser.add_argument("--count", type=int, default=9000, help="spoken numbers to learn from, and as many sentences")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--dropout", type=float, most=1, default=0.1, help="of attention")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model on noise")
    args = parser.parse_args()
    refuse_several_processes()
    args.work.mkdir(parents=True, exist_ok=True)
    args.out = args.out or (args.work if args.smoke else Path("mmspec/minis/speech"))
    torch.manual_seed(0)
    if args.smoke:
        args.layers, args.width, args.rows, args.steps = 1, 32, 2, 2
        examples, held = noise_lines(), noise_lines("three")
        PatchCodec(PatchCodecConfig(codes=8, width=8)).save(args.out / "codec")
    else:
        codec = PatchCodec.load(args.out / "codec")
        examples, held = (read_lines(args.work, codec, *each) for each in ((args.count, "train"), (200, "test")))
    split = apart(examples.keys(), held.keys(), "lines")
    held = held.part(split.held)
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
        return nats(model, *examples.drawn(step, args.rows))

    def validate(model: nn.Module, step: int) -> None:
        print(step, json.dumps(held_out_nats(model, held)), flush=True)

    plan = Fit(steps=args.steps, lr=2e-3, warmup=100, checkpoint_every=250, mixed_precision=args.precision)
    fit(model, loss, plan, args.work / "target.pt", title="target", validate=validate, held=split)
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "steps": args.steps, **held_out_nats(model, held)}
    save_llama(model, args.out / "target")
    letter_tokenizer().save_pretrained(args.out)
    (args.work / "target.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    tell_command("mmspec", "speech", "three five seven", "--model", args.out)


if __name__ == "__main__":
    run_recipe(main)
