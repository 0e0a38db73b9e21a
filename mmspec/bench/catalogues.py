"""What large catalogues cost: bytes an item, CPU seconds, memory, and searches that leave out seen items."""

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

LEVELS = 4


def random_catalogue(items: int, size: int) -> Catalogue:
    """Make a catalogue of random codes, kept in columns, as a table of many items is.

    Args:
        items: number of items, which are whole numbers in no order.
        size: codes a level, of four levels.

    Returns:
        The catalogue.
    """
    import pyarrow as pa

    generator = np.random.default_rng(0)
    codes = torch.from_numpy(generator.integers(0, size, (items, LEVELS), dtype=np.int32))
    paths = codes + 2 + size * torch.arange(LEVELS, dtype=torch.int32)
    ids = Column.of(pa.array(generator.permutation(items).astype(np.int64) + 10**9))
    return Catalogue(ids, paths, before=(1,))


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process for `work`, and what it returns."""
    begun = time.process_time()
    found = work()
    return time.process_time() - begun, found


def _own_memory() -> float:
    """MiB of memory that this process shares with no file."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def _in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
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


def _mapped(file: Path) -> dict[str, Any]:
    """Map a file in a process that does nothing else, and use it."""

    def work() -> dict[str, Any]:
        before = _own_memory()
        took, catalogue = _seconds(lambda: Catalogue.read(file))
        rows = range(0, len(catalogue), max(1, len(catalogue) // 1000))
        used, _ = _seconds(lambda: [catalogue.row(catalogue.items[row]) for row in rows])
        catalogue.trie.children(torch.zeros(1, 1, dtype=torch.long), 0)
        return {"map_seconds": took, "lookup_microseconds": 1e6 * used / len(rows), "own_memory_mib": _own_memory() - before}

    return _in_child(work)


def catalogue_costs(items: int, size: int) -> dict[str, Any]:
    """Measure how large a catalogue is, and what it costs to build, write, read and map it.

    Args:
        items: number of items.
        size: codes a level.

    Returns:
        Counts, bytes an item, CPU seconds, and MiB of memory.
    """
    made, catalogue = _seconds(lambda: random_catalogue(items, size))
    built, tables = _seconds(lambda: catalogue.tables)
    with TemporaryDirectory() as folder:
        table, file = Path(folder) / "catalogue.parquet", Path(folder) / "catalogue.safetensors"
        written, _ = _seconds(lambda: catalogue.write(table))
        indexed, _ = _seconds(lambda: catalogue.write(file))
        read, _ = _seconds(lambda: Catalogue.read(table))
        told = {"items": items, "paths": tables.trie.size, "nodes": len(tables.trie.token)}
        told |= {"bytes_an_item": file.stat().st_size / items, "parquet_bytes_an_item": table.stat().st_size / items}
        told |= {"check_seconds": made, "trie_seconds": built, "write_parquet_seconds": written, "read_parquet_seconds": read}
        told |= {"write_mapped_seconds": indexed, **_mapped(file)}
    return told | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def search_costs(items: int, size: int, users: int, repetitions: int, layers: int) -> dict[str, Any]:
    """Measure a plain search, and one that leaves out the histories' items, of a model with random weights of width 192.

    Args:
        items: number of items.
        size: codes a level.
        users: users a search, each with a history of 20 items.
        repetitions: searches of either kind, in turn.
        layers: of the model.

    Returns:
        Median, least and most CPU seconds of either, MiB by which it raises the peak of memory, and the ratio of seconds.
    """
    catalogue = random_catalogue(items, size)
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
            times[name].append(_seconds(run)[0])
    peaks = {name: _in_child(lambda run=run: _peak(run))["mib"] for name, run in search.items()}
    ratios = [unseen / plain for plain, unseen in zip(times["plain"], times["unseen"], strict=True)]
    told: dict[str, Any] = {"items": items, "users": users, "repetitions": repetitions}
    for name, values in times.items():
        told[name] = {"median": statistics.median(values), "least": min(values), "most": max(values), "extra_peak_mib": peaks[name]}
    return told | {"ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}}


def _peak(run: Callable[[], Any]) -> dict[str, Any]:
    """MiB by which `run` raises what this process holds at most."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins at what is held now
    before = _own_memory()
    run()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    shared = next(int(line.split()[1]) for line in lines if line.startswith("RssFile")) / 1024
    return {"mib": peak - shared - before}
