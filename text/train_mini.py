"""Make mini text from nothing: a BPE tokenizer, a 6.9 M target and a 0.8 M drafter distilled from it.

    python text/train_mini.py --work build/mini-text --out mmspec/minis/text      (48 minutes on two shared CPU cores)

Data (MMSPEC_DATA, default ../shared/data): stories (African Storybook, CC BY), plays (tinyshakespeare, public domain), worded sums
(GSM8K train split, MIT). Stages resume: delete the work folder to start again. The drafter learns the target's own distribution on the
corpus and on text the target wrote itself. The card's figures are of the weights as they are stored.
"""

import os
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import mmspec
from mmspec.minis.card import as_stored, text_card, write_text_mini
from mmspec.minis.corpus import documents, openings, split
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.train.states.identity import keyed
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

END, PAD, WINDOW, VOCAB = "<|end|>", "<|pad|>", 320, 2048


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    bpe, split = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split])
    bpe.decoder = decoders.ByteLevel()
    options = {"vocab_size": VOCAB, "special_tokens": [END, PAD], "initial_alphabet": split.alphabet(), "show_progress": False}
    bpe.train_from_iterator(texts, trainers.BpeTrainer(**options))
    bpe.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END, eos_token=END, pad_token=PAD, padding_side="left")


def llama(width: int, layers: int, heads: int, feed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        intermediate_size=feed,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config)


def crops(stream: torch.Tensor, rows: int, step: int) -> torch.Tensor:
    """`rows` random windows, a function of `step` alone so that a resumed run sees the same batches."""
    starts = torch.randint(len(stream) - WINDOW, (rows,), generator=torch.Generator().manual_seed(step))
    return torch.stack([stream[s : s + WINDOW] for s in starts])


@torch.no_grad()
def loss_on(model, stream: torch.Tensor) -> float:
    windows = stream[: len(stream) // WINDOW * WINDOW].view(-1, WINDOW)[:120]
    return sum(model(rows, labels=rows).loss.item() * len(rows) for rows in windows.split(20)) / len(windows)


@torch.no_grad()
def own_text(target, tokenizer, train: list[str], rounds: int, rows: int, path: Path) -> torch.Tensor:
    """Windows [rounds * rows, WINDOW] the target writes from the openings of training documents, half greedy, half sampled."""
    if path.exists():
        return torch.load(path)
    pieces, pick = [], random.Random(0)
    target.generation_config.eos_token_id = None  # after one document the target goes on with the next, as in the packed stream
    for turn in range(rounds):
        torch.manual_seed(turn)
        chosen = pick.sample([text for text in train if len(text) > 200], rows)
        opening = torch.tensor([tokenizer(text)["input_ids"][:24] for text in chosen])
        sampling = {"do_sample": True, "top_k": 0} if turn % 2 else {"do_sample": False}
        pieces.append(target.generate(opening, attention_mask=torch.ones_like(opening), max_new_tokens=WINDOW - 24, **sampling))
    torch.save(torch.cat(pieces), path)
    return torch.cat(pieces)


@torch.no_grad()
def teacher(target, examples: torch.Tensor, path: Path) -> torch.Tensor:
    """The target's log-probabilities over every lesson in half precision, [lessons, WINDOW, VOCAB]: computed once, read every epoch."""
    if path.exists():
        return torch.load(path)
    distributions = torch.cat([target(rows).logits.log_softmax(-1).half() for rows in examples.split(16)])
    torch.save(distributions, path)
    return distributions


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/mini-text"))
    parser.add_argument("--out", type=Path, default=Path("mmspec/minis/text"))
    parser.add_argument("--steps", type=int, default=1500, help="target steps of 16 windows")
    parser.add_argument("--drafter-steps", type=int, default=2000, help="drafter steps of 16 windows")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps of tiny models on a few made-up lines")
    args = parser.parse_args()
    refuse_several_processes()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if args.smoke:
        texts = [f"Question: what is {i} and {i}?\nAnswer: {2 * i}, as {i} plus {i} is {2 * i}. " * 8 for i in range(100)]
        target, drafter, rows, rounds = llama(32, 2, 2, 64), llama(16, 1, 2, 32), 2, 2
        args.steps, args.drafter_steps, args.out = 2, 2, args.work / "mini"  # never over the shipped one
    else:
        texts = documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))
        target, drafter, rows, rounds = llama(192, 16, 6, 512), llama(192, 1, 6, 512), 64, 8
    parts = split(texts)
    train, held = ([texts[number] for number in part] for part in (parts.train, parts.held))
    tokenizer = make_tokenizer(train)
    random.Random(0).shuffle(train)
    stream, unseen = (torch.tensor([i for t in kind for i in tokenizer(t)["input_ids"]]) for kind in (train, held))

    def next_token(model, step):
        windows = crops(stream, 16, step)
        return model(windows, labels=windows).loss

    plan = Fit(steps=args.steps, lr=1.5e-3, warmup=100, mixed_precision=args.precision)
    fit(target, next_token, plan, args.work / "target.pt", title="target")
    written = own_text(target, tokenizer, train, rounds, rows, keyed(args.work / "own.pt", target, rounds, rows))
    examples = torch.cat([crops(stream, len(written), 0), written])
    distributions = teacher(target, examples, keyed(args.work / "laws.pt", target, examples))

    def distil(model, step):
        pick = torch.randint(len(examples), (16,), generator=torch.Generator().manual_seed(step))
        p, q = distributions[pick].float(), model(examples[pick]).logits.float().log_softmax(-1)
        return F.kl_div(q.flatten(0, 1), p.flatten(0, 1), log_target=True, reduction="batchmean")

    plan = Fit(steps=args.drafter_steps, lr=4e-3, warmup=100, mixed_precision=args.precision)
    fit(drafter, distil, plan, args.work / "drafter.pt", title="drafter")
    facts = {f"held-out loss, {n} (nats a token)": loss_on(as_stored(m), unseen) for n, m in (("target", target), ("drafter", drafter))}
    prompts = openings(held)
    inputs = {key: value for key, value in tokenizer(prompts, return_tensors="pt", padding=True).items() if key != "token_type_ids"}
    target.generation_config.eos_token_id = 0
    for title, temperature in (("greedy", 0.0), ("temperature 0.7", 0.7)):
        stats = mmspec.text.generate(target, inputs, drafter, max_new_tokens=96, temperature=temperature, draft_length=5).stats
        facts[f"tokens per target call, drafts of 5, {title}"] = stats.tokens_per_call
        facts[f"share of judged draft tokens accepted, {title}"] = stats.accepted / max(1, stats.judged)
    card = text_card(args.steps, args.drafter_steps, facts, len(prompts))
    write_text_mini(args.out, target, drafter, tokenizer, prompts=prompts, card=card)
    print(card)
    tell_command("mmspec", "text", "Once upon a time", "--model", args.out, "--drafter", args.out / "drafter")


if __name__ == "__main__":
    run_recipe(main)
