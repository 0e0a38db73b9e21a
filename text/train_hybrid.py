"""Train a small model with recurrent states on mini text's data: Qwen3-Next's shape with 5.2 M parameters, or any other config.

    python text/train_hybrid.py --work build/hybrid-work --out build/hybrid
    python text/train_hybrid.py --config granite.json --out build/granite     # {"model_type": "granitemoehybrid", "hidden_size": 192, ...}

Data, tokenizer, windows and steps are those of text/train_mini.py (MMSPEC_DATA, default ../shared/data), so its drafter fits this target,
too. A stopped run continues: delete the work folder to start again. The result is a folder that transformers loads, with openings of
training documents beside it. Drafters for it, `eagle3`, `dflash` or others:

    python text/train_drafter.py eagle3 --model build/hybrid --prompts build/hybrid/prompts.jsonl --out build/hybrid-eagle3
"""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import mmspec
from mmspec.minis.corpus import documents, openings, split
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

WINDOW = 320
QWEN3_NEXT: dict[str, Any] = {
    **{"model_type": "qwen3_next", "hidden_size": 192, "num_hidden_layers": 8, "intermediate_size": 512, "full_attention_interval": 4},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048, "tie_word_embeddings": True},
    **{"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 96},
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 160, "shared_expert_intermediate_size": 160},
}
SMALLER = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
CARD = """# {name}, {size:.2f} M parameters

`python text/train_hybrid.py`: {steps} steps of {many} windows of {window} tokens, data and tokenizer of mini text.

| figure, {prompts} held-out prompts | value |
|---|---|
{rows}
"""


def new_model(fields: dict[str, Any], tokenizer: Any) -> Any:
    """A model of the config `fields`, with the tokenizer's ids, in float32."""
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    rest = {**fields, "vocab_size": len(tokenizer), **ids}
    if "model_type" not in rest:
        raise SystemExit("the config names no model_type: give one of transformers', such as qwen3_next")
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(rest.pop("model_type"), **rest), dtype=torch.float32)


def crops(stream: torch.Tensor, rows: int, step: int) -> torch.Tensor:
    """`rows` random windows, a function of `step` alone so that a resumed run sees the same batches."""
    starts = torch.randint(len(stream) - WINDOW, (rows,), generator=torch.Generator().manual_seed(step))
    return torch.stack([stream[s : s + WINDOW] for s in starts])


@torch.no_grad()
def loss_on(model: Any, stream: torch.Tensor) -> float:
    windows = stream[: len(stream) // WINDOW * WINDOW].view(-1, WINDOW)[:120]
    return sum(model(rows, labels=rows).loss.item() * len(rows) for rows in windows.split(20)) / len(windows)


def save(folder: Path, model: Any, tokenizer: Any, prompts: list[str], card: str) -> None:
    """Write all files to a temporary folder, and rename it."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    lines = "".join(json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in prompts)
    (temporary / "prompts.jsonl").write_text(lines, encoding="utf-8")
    (temporary / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(temporary, folder)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/hybrid-work"))
    parser.add_argument("--out", type=Path, default=Path("build/hybrid"))
    parser.add_argument("--config", type=Path, help="JSON with a model_type and sizes, instead of the Qwen3-Next shape")
    parser.add_argument("--steps", type=int, default=1500, help="steps of --rows windows")
    parser.add_argument("--rows", type=int, default=16, help="windows a step")
    parser.add_argument("--lr", type=float, default=1.5e-3, help="peak learning rate")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model on a few made-up lines")
    args = parser.parse_args()
    refuse_several_processes()
    args.work.mkdir(parents=True, exist_ok=True)
    mini = mmspec.load("text")
    tokenizer, fields = mini.processor, json.loads(args.config.read_text(encoding="utf-8")) if args.config else QWEN3_NEXT
    if args.smoke:
        texts = [f"Question: what is {i} and {i}?\nAnswer: {2 * i}, as {i} plus {i} is {2 * i}. " * 8 for i in range(100)]
        args.steps, args.rows, args.out = 2, 2, args.work / "hybrid"
        fields = fields if args.config else fields | SMALLER
    else:
        texts = documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))
    parts = split(texts)
    train, held = ([texts[number] for number in part] for part in (parts.train, parts.held))
    random.Random(0).shuffle(train)
    stream, unseen = (torch.tensor([i for text in kind for i in tokenizer(text)["input_ids"]]) for kind in (train, held))
    torch.manual_seed(0)
    model = new_model(fields, tokenizer)
    parameters, config = sum(weight.numel() for weight in model.parameters()), model.config
    routed = hasattr(config, "router_aux_loss_coef") and (getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0)) > 0
    print(f"{type(model).__name__}, {parameters / 1e6:.2f} M parameters", flush=True)

    def next_token(model: Any, step: int) -> torch.Tensor:
        windows = crops(stream, args.rows, step)
        return model(windows, labels=windows, **({"output_router_logits": True} if routed else {})).loss

    plan = Fit(steps=args.steps, lr=args.lr, warmup=100, mixed_precision=args.precision)
    fit(model, next_token, plan, args.work / "target.pt", title="target")
    model.eval()
    prompts = openings(held)
    inputs = {key: value for key, value in tokenizer(prompts, return_tensors="pt", padding=True).items() if key != "token_type_ids"}
    facts = {"held-out loss (nats a token)": loss_on(model, unseen)}
    for name, drafter in (("lookup", "lookup"), ("mini text's drafter", mini.drafters["model"])):
        stats = mmspec.text.generate(model, inputs, drafter, max_new_tokens=8 if args.smoke else 96, draft_length=5).stats
        facts[f"tokens per target call, {name}, drafts of 5, greedy"] = stats.tokens_per_call
    rows = "\n".join(f"| {name} | {value:.3f} |" for name, value in facts.items())
    card = CARD.format(
        name=type(model).__name__, size=parameters / 1e6, steps=args.steps, many=args.rows, window=WINDOW, prompts=len(prompts), rows=rows
    )
    save(args.out, model, tokenizer, [text[:200].rsplit(" ", 1)[0] for text in train if len(text) > 200][:1280], card)
    print(card)
    tell_command("mmspec", "text", "Once upon a time", "--model", args.out)


if __name__ == "__main__":
    run_recipe(main)
