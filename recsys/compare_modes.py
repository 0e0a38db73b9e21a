"""Item beams beside transformers' constrained beam search: calls a user, acceptance, items kept, seconds, throughput and memory.

    python recsys/compare_modes.py --users 500 --rounds 5        (15 minutes on two CPU cores)
    python recsys/compare_modes.py --random 400 --device cuda --dtype bfloat16       (a random target of 400 M parameters)

Calls count one user's share of every target forward: plain search makes one a level. Strict results are compared with plain ones item
by item. Seconds are interleaved in one process: each round times transformers' `generate(num_beams=K, prefix_allowed_tokens_fn=...)`
and then every contender on the same users, and ratios are paired; their median and spread are shown.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.bench.compare.recommendations import Prefixes, beam_search_baseline, overlap, shared_bytes
from mmspec.minis.shop import Shop
from mmspec.recsys import recommend
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import machine, provenance

SAMPLED = ("coupled", "sample", "relaxed")
"""Modes that draw their beams: how many of plain search's items they meet stands beside what undrafted sampling meets."""


def grown(millions: int, like: LlamaConfig) -> LlamaForCausalLM:
    """A random target of about so many parameters over the same tokens: for seconds only."""
    width = 1024 if millions >= 100 else 256
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 64, "num_key_value_heads": width // 64}
    layers = max(1, round(millions * 1e6 / (16 * width**2)))
    return LlamaForCausalLM(LlamaConfig(**{**like.to_dict(), **sizes, "head_dim": 64, "num_hidden_layers": layers})).eval()


def timed(work: Callable[[], object], device: torch.device, clock: Callable[[], float] = perf_counter) -> float:
    began = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def spread(found: list[float]) -> dict[str, float]:
    return {"median": statistics.median(found), "low": min(found), "high": max(found)}


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--mini", choices=("recsys", "recsys-deep"), default="recsys")
    parser.add_argument("--users", type=int, default=500, help="held-out simulated users to count calls on")
    parser.add_argument("--k", type=int, nargs="+", default=[10, 20, 50])
    parser.add_argument("--wider", type=int, default=4, help="beams drafted, as a multiple of k")
    parser.add_argument("--drafters", nargs="+", help="names in the mini; default all")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of seconds; 0 for none")
    parser.add_argument("--timed-batch", type=int, default=8)
    parser.add_argument("--cpu-time", action="store_true", help="ratios of this process's CPU seconds, for a machine that is not idle")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], help="for throughput and memory")
    parser.add_argument("--random", type=int, help="time a random target of so many million parameters in the mini's place")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="a few users, one k, one round")
    args = parser.parse_args()
    if args.smoke:
        args.users, args.k, args.rounds, args.batches, args.timed_batch = 2, [5], 1, [1, 2], 2
    mini, device, dtype = mmspec.load(args.mini), torch.device(args.device), getattr(torch, args.dtype)
    target = grown(args.random, mini.target.config) if args.random else mini.target
    target = target.to(device, dtype)
    chosen = {name: mini.drafters[name] for name in args.drafters or mini.drafters}
    chosen = {name: d.to(device, dtype) if isinstance(d, torch.nn.Module) else d.to(device) for name, d in chosen.items()}
    catalogue, prefixes = mini.catalogue, Prefixes(mini.catalogue)
    users = [user[:-1] for user in Shop.of().histories(max(args.users, 4 * max(args.batches), args.timed_batch), seed=2)]
    clock = process_time if args.cpu_time else perf_counter
    found: dict = {"counts": [], "seconds": [], "batches": []}

    def search(histories: list, k: int, **options):
        return recommend(target, histories, k=k, catalogue=catalogue, width=args.wider * k, **options)

    for k in args.k:
        parts = [users[first : first + 50] for first in range(0, args.users, 50)]
        plain = [search(part, k, mode="plain") for part in parts]
        for name, mode in [*((name, "strict") for name in chosen), (None, "coupled"), *((next(iter(chosen)), mode) for mode in SAMPLED)]:
            outs = [search(part, k, drafter=chosen.get(name), mode=mode, seed=50 * n) for n, part in enumerate(parts)]
            same = sum(a == b for out, base in zip(outs, plain, strict=True) for a, b in zip(out.items, base.items, strict=True))
            calls = sum(out.stats.row_calls for out in outs) / args.users
            kept = statistics.mean(overlap(out.items, base.items) for out, base in zip(outs, plain, strict=True))
            row = {"k": k, "drafter": name, "mode": mode, "calls": calls, "same": same / args.users, "overlap": kept}
            found["counts"].append(row)
            what = f"k {k}, {name or 'nothing drafted'}, {mode}"
            print(f"{what}: {calls:.2f} calls a user, same items for {same} of {args.users}, overlap {kept:.3f}", flush=True)
    for k in args.k if args.rounds else ():
        ratios: dict[str, list[float]] = {}
        for turn in range(-1, args.rounds):  # the first round warms up
            some = [users[(turn * args.timed_batch + n) % len(users)] for n in range(args.timed_batch)]
            inputs = catalogue.inputs(some, device)
            base = timed(lambda: beam_search_baseline(target, inputs, prefixes, k), device, clock)  # noqa: B023
            for name, drafter in {"plain": None, **chosen}.items():
                spent = timed(lambda: search(some, k, drafter=drafter, mode="strict"), device, clock)  # noqa: B023
                if turn >= 0:
                    ratios.setdefault(name, []).append(base / spent)
        for name, values in ratios.items():
            found["seconds"].append({"k": k, "contender": name, "batch": args.timed_batch, **spread(values)})
            print("k {k}, {contender}: {median:.2f} ({low:.2f}-{high:.2f}) x transformers, batch {batch}".format(**found["seconds"][-1]))
    k, most, rates = args.k[0], 4 * max(args.batches), {batch: [] for batch in args.batches}
    sorted_users = sorted(users[:most], key=len)  # as jobs do, so that little is padding
    for turn in range(-1, args.rounds if args.rounds else -1):  # the same users every time, `batch` at once
        for batch, seen in rates.items():
            parts = [sorted_users[first : first + batch] for first in range(0, most, batch)]
            spent = timed(lambda: [search(part, k) for part in parts], device)  # noqa: B023
            seen += [most / spent] if turn >= 0 else []
    for batch in args.batches if args.rounds else ():
        inputs = catalogue.inputs(users[:batch], device)
        theirs = beam_search_baseline(target, inputs, prefixes, k).cache_bytes / batch
        ours = shared_bytes(target, inputs, catalogue, k) / batch
        row = {"k": k, "batch": batch, "users_per_second": spread(rates[batch]), "bytes": ours, "bytes_transformers": theirs}
        found["batches"].append(row)
        print("k {k}, batch {batch}: {median:.1f} ({low:.1f}-{high:.1f}) users/s plain;".format(**row, **row["users_per_second"]), end=" ")
        print(f"{ours / 1024:.0f} KiB of cache a user, transformers {theirs / 1024:.0f} ({theirs / ours:.1f} times as much)")
    about = provenance(device)
    print(machine(about), about["date"])
    if args.out:
        write_json(args.out, {**found, "settings": {key: str(value) for key, value in vars(args).items()}, "provenance": about})


if __name__ == "__main__":
    main()
