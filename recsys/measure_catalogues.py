"""Measure large catalogues: bytes an item, CPU seconds to build, write, read and map, and what leaving out seen items costs.

    python recsys/measure_catalogues.py --items 1000000 5000000 10000000
    python recsys/measure_catalogues.py --items 1000000 --unseen                (plain search beside it, batches of 64 users)

Seconds are CPU time of the process, and of a search its median with the largest and smallest of the repetitions. Memory of a mapped
catalogue is what a process that maps it holds of its own (RssAnon) before and after it looked up items and searched the trie.
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.recsys import Catalogue, recommend
from mmspec.recsys.storage.column import Column

LEVELS, MIB = 4, 2**20


def shop(items: int, size: int) -> Catalogue:
    """Random codes; items are whole numbers in no order. Kept in columns, as a table of many items is."""
    import pyarrow as pa

    generator = np.random.default_rng(0)
    codes = torch.from_numpy(generator.integers(0, size, (items, LEVELS), dtype=np.int32))
    paths = codes + 2 + size * torch.arange(LEVELS, dtype=torch.int32)
    ids = Column.of(pa.array(generator.permutation(items).astype(np.int64) + 10**9))
    return Catalogue(ids, paths, before=(1,))


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process for `work`, and what it returns."""
    begun = time.process_time()
    found = work()
    return time.process_time() - begun, found


def own_memory() -> float:
    """MiB of memory that this process shares with no file."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` returns in a process of its own."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found)


def mapped(file: Path) -> dict[str, Any]:
    """Map a file in a process that does nothing else, and use it."""

    def work() -> dict[str, Any]:
        before = own_memory()
        took, catalogue = seconds(lambda: Catalogue.read(file))
        used, _ = seconds(lambda: [catalogue.row(catalogue.items[row]) for row in range(0, len(catalogue), max(1, len(catalogue) // 1000))])
        catalogue.trie.children(torch.zeros(1, 1, dtype=torch.long), 0)
        return {"map_seconds": took, "lookup_microseconds": 1e6 * used / 1000, "own_memory_mib": own_memory() - before}

    return in_child(work)


def measure(items: int, size: int) -> dict[str, Any]:
    """The row of one catalogue."""
    made, catalogue = seconds(lambda: shop(items, size))
    built, tables = seconds(lambda: catalogue.tables)
    with TemporaryDirectory() as folder:
        table, file = Path(folder) / "catalogue.parquet", Path(folder) / "catalogue.safetensors"
        written, _ = seconds(lambda: catalogue.write(table))
        indexed, _ = seconds(lambda: catalogue.write(file))
        read, _ = seconds(lambda: Catalogue.read(table))
        told = {"items": items, "paths": tables.trie.size, "nodes": len(tables.trie.token)}
        told |= {"bytes_an_item": file.stat().st_size / items, "parquet_bytes_an_item": table.stat().st_size / items}
        told |= {"check_seconds": made, "trie_seconds": built, "write_parquet_seconds": written, "read_parquet_seconds": read}
        told |= {"write_mapped_seconds": indexed, **mapped(file)}
    return told | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def search_costs(items: int, size: int, users: int, repetitions: int, layers: int) -> dict[str, Any]:
    """CPU seconds and peak memory of a plain search, and of one that leaves out the histories' items."""
    catalogue = shop(items, size)
    sizes: dict[str, Any] = {"hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=2 + size * LEVELS, max_position_embeddings=128, eos_token_id=None)
    model = LlamaForCausalLM(config).eval()
    generator = np.random.default_rng(1)
    histories = [catalogue.items[first : first + 20] for first in generator.integers(0, items - 20, users)]
    search = {
        name: lambda unseen=name == "unseen": recommend(model, histories, k=10, catalogue=catalogue, method="plain", unseen=unseen)
        for name in ("plain", "unseen")
    }
    for run in search.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in search}
    for _ in range(repetitions):
        for name, run in search.items():
            times[name].append(seconds(run)[0])
    peaks = {name: in_child(lambda run=run: _peak(run))["mib"] for name, run in search.items()}
    ratios = [unseen / plain for plain, unseen in zip(times["plain"], times["unseen"], strict=True)]
    told: dict[str, Any] = {"items": items, "users": users, "repetitions": repetitions}
    for name, values in times.items():
        told[name] = {"median": statistics.median(values), "least": min(values), "most": max(values), "extra_peak_mib": peaks[name]}
    return told | {"ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}}


def _peak(run: Callable[[], Any]) -> dict[str, Any]:
    """MiB by which `run` raises what this process holds at most."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins at what is held now
    before = own_memory()
    run()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    shared = next(int(line.split()[1]) for line in lines if line.startswith("RssFile")) / 1024
    return {"mib": peak - shared - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--size", type=int, default=256, help="codes a level")
    parser.add_argument("--unseen", action="store_true", help="compare searches instead")
    parser.add_argument("--users", type=int, default=64, help="users a search")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--layers", type=int, default=5, help="of the model that searches, random weights of width 192")
    parser.add_argument("--smoke", action="store_true", help="3,000 items, both tables")
    args = parser.parse_args()
    if args.smoke:
        args.items, args.size, args.users, args.repetitions, args.layers = [3000], 16, 4, 1, 1
    torch.set_num_threads(1)
    for items in args.items:
        if not args.unseen:
            print(json.dumps(measure(items, args.size)), flush=True)
        if args.unseen or args.smoke:
            print(json.dumps(search_costs(items, args.size, args.users, args.repetitions, args.layers)), flush=True)


if __name__ == "__main__":
    main()
