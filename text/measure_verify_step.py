"""What verifying several draft tokens costs beside one token, against the floor that memory bandwidth sets, eager and captured.

    python text/measure_verify_step.py                          # CUDA: a target of Llama 7B's shape, random weights, bfloat16
    python text/measure_verify_step.py --layers 8 --context 2048 --out verify.json

One verify step is one `score` of a session: N draft nodes on a cached context, logits back in float32. The floor is the time to
read the weights once: their bytes (the input embedding's table left out, as a step reads only its rows) over the bandwidth that a
large copy on this device reaches. Captured means torch.compile with mode="reduce-overhead" (CUDA graphs) around fixed shapes and
addresses. On a CPU, or with --smoke, a tiny model shows that everything runs; its figures mean nothing.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from time import perf_counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.bench.compare.peers import synchronize
from mmspec.core.records import Draft
from mmspec.models.families.base import DecoderOnly
from mmspec.models.target import HFTarget
from mmspec.utils.files import write_json
from mmspec.utils.provenance import machine, provenance

SEVEN_B = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 32000}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 256}


def build(shape: dict, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    """A Llama with random weights, made on the device itself."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=8192)).eval()
    finally:
        torch.set_default_dtype(before)


def timed(step: Callable[[], object], device: torch.device, repeats: int, warm: int) -> tuple[float, float, float]:
    """Median and quartiles of the milliseconds a step takes."""
    seconds = []
    for turn in range(warm + repeats):
        synchronize(device)
        start = perf_counter()
        step()
        synchronize(device)
        if turn >= warm:
            seconds.append(1000 * (perf_counter() - start))
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return middle, low, high


def bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second that a copy of `size` bytes reads and writes."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (timed(lambda: target.copy_(source), device, 20, 5)[0] / 1000)


def opened(target: HFTarget, context: int) -> tuple:
    """A session with `context` positions cached, and the pending token behind them."""
    device = target.model.device
    ids = torch.randint(target.model.config.vocab_size, (1, context), generator=torch.Generator().manual_seed(0)).to(device)
    session, pending = target.begin({"input_ids": ids})
    session.score(pending)
    session.commit(torch.zeros(1, 1, dtype=torch.long, device=device), 1)
    return session, Draft.root(ids[:, 0], torch.ones(1, dtype=torch.long, device=device))


def step_of(session, pending: Draft, tokens: int) -> Callable[[], object]:
    """A verify step of `tokens` nodes that leaves the session as it was."""
    device = pending.nodes.device
    budget, nothing = torch.full((1,), tokens, device=device), torch.full((1, tokens), -1, device=device)
    draft = pending.extend_chain(pending.nodes.expand(1, tokens - 1), budget) if tokens > 1 else pending

    def step() -> None:
        session.score(draft)
        session.commit(nothing, 0)

    return step


def measure(args: argparse.Namespace, device: torch.device) -> dict:
    """Every figure of the table."""
    real = device.type == "cuda" and not args.smoke
    shape = SEVEN_B | ({} if args.layers is None else {"num_hidden_layers": args.layers}) if real else TINY
    model = build(shape, device, torch.bfloat16 if real else torch.float32)
    size = sum(p.numel() * p.element_size() for p in model.parameters()) - model.model.embed_tokens.weight.nbytes
    speed = bandwidth(device, 2**30 if real else 2**22)
    eager = HFTarget(model, DecoderOnly.of(model), reserve=256)
    options = {} if real else {"backend": "eager", "mode": None}  # a CPU has no graphs to capture
    rows, floor = [], 1000 * size / speed
    for name, target in (("eager", eager), ("captured", eager.capture(256, **options))):
        session, pending = opened(target, args.context)
        for tokens in args.tokens:
            middle, low, high = timed(step_of(session, pending, tokens), device, args.repeats, 5)
            rows.append({"run": name, "tokens": tokens, "ms": middle, "low": low, "high": high, "times_floor": middle / floor})
    return {"weight_bytes": size, "bytes_per_second": speed, "floor_ms": floor, "context": args.context, "shape": shape, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 16], help="nodes of a verify step")
    parser.add_argument("--context", type=int, default=512, help="cached positions")
    parser.add_argument("--layers", type=int, help="fewer layers than Llama 7B's 32")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU")
    args = parser.parse_args()
    if args.smoke:
        args.repeats, args.context = 3, 16
    device = torch.device("cuda" if torch.cuda.is_available() and not args.smoke else "cpu")
    found = measure(args, device) | {"provenance": provenance(device)}
    print(f"Weights read: {found['weight_bytes'] / 1e9:.3f} GB; copy bandwidth {found['bytes_per_second'] / 1e9:.0f} GB/s;", end=" ")
    print(f"floor {found['floor_ms']:.3f} ms; context {args.context}; {machine(found['provenance'])}; torch {torch.__version__}\n")
    print("| run | tokens | ms (quartiles) | times floor | times one token |\n|---|---|---|---|---|")
    ones = {row["run"]: row["ms"] for row in found["rows"] if row["tokens"] == 1}
    for row in found["rows"]:
        ratio = f"{row['ms'] / ones[row['run']]:.2f}" if row["run"] in ones else ""
        spread = f"{row['ms']:.2f} ({row['low']:.2f}-{row['high']:.2f})"
        print(f"| {row['run']} | {row['tokens']} | {spread} | {row['times_floor']:.2f} | {ratio} |")
    if args.out is not None:
        write_json(args.out, found)


if __name__ == "__main__":
    main()
