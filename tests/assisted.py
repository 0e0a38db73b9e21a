"""transformers' own assisted generation beside mmspec, in one process, on small models with the same weights.

python -m tests.assisted [--new TOKENS] [--seconds]: print the table of docs/drafters.md: for every pair whether the texts are those of
plain `generate`, and tokens a call of the target. Greedy, one row at a time, as transformers' assisted generation takes no batch.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

import mmspec
from tests import dflash_assistants, gemma4_assistants
from tests.hybrids import prompts, row_of
from tests.shipped_mtp import folder_of, loaded

LENGTHS = (7, 12, 2)
LONGER = 4
"""Draft tokens of the runs that draft more than there are modules."""
STRENGTH = 0.3
GEMMA = "Gemma-4's assistant"


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it, here and in transformers."""

    name: str
    target: Any
    drafter: Any
    lengths: tuple[int, ...]  # draft tokens of our runs, the first as in transformers' run
    options: Mapping[str, Any] = field(default_factory=dict)  # of transformers' `generate`


@dataclass(frozen=True)
class Row:
    """One way to generate."""

    name: str
    way: str
    same: bool  # the text is that of plain `generate`
    tokens_per_call: float
    seconds: float


def pairs(folder: Path) -> Iterator[Pair]:
    """All pairs, one after the other; files are written to `folder`."""
    for name, modules in (("DeepSeek-V3", 1), ("DeepSeek-V3 two", 2), ("GLM-4.5", 1), ("Mellum", 1)):
        target = loaded(folder_of(name, folder, STRENGTH))
        title = f"MTP, {name.removesuffix(' two')}, {modules} module{'s' * (modules > 1)}"
        yield Pair(title, target, "mtp", (modules, LONGER), {"use_mtp": True})
    with redirect_stdout(sys.stderr):  # a progress bar
        target, assistant = dflash_assistants.trained(folder, steps=12)
    yield Pair("DFlash, a block of 5", target, assistant, (4,), {"assistant_model": assistant, "speculation_type": "dflash"})
    target = gemma4_assistants.target()
    assistant = gemma4_assistants.assistant(target)
    yield Pair(GEMMA, target, assistant, (gemma4_assistants.DRAFTED,), {"assistant_model": assistant})


def compared(pair: Pair, new: int) -> list[Row]:
    """transformers' run and ours, over the same prompts in turn."""
    plain = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0, "eos_token_id": None}
    pair.target.generation_config.eos_token_id = None

    def theirs(inputs: Any) -> tuple[list[int], int]:
        calls: list[int] = []
        handle = pair.target.register_forward_pre_hook(lambda module, args: calls.append(1))
        try:
            out = pair.target.generate(**inputs, **plain, **pair.options)
        finally:
            handle.remove()
        return out[0, inputs["input_ids"].shape[1] :].tolist(), len(calls)

    def ours(length: int) -> Callable[[Any], tuple[list[int], int]]:
        def run(inputs: Any) -> tuple[list[int], int]:
            out = mmspec.text.generate(pair.target, inputs, pair.drafter, draft_length=length, max_new_tokens=new)
            return out.tokens[0].tolist(), out.stats.target_calls

        return run

    ways = {"transformers": theirs} | {f"mmspec, drafts of {length}": ours(length) for length in pair.lengths}
    found = {way: [True, 0, 0.0] for way in ways}
    for row in range(len(LENGTHS)):
        inputs = row_of(prompts(LENGTHS), row)
        inputs["input_ids"] = inputs["input_ids"] % pair.target.config.get_text_config().vocab_size
        expected = pair.target.generate(**inputs, **plain)[0, inputs["input_ids"].shape[1] :].tolist()
        for way, run in ways.items():
            begun = perf_counter()
            text, calls = run(inputs)
            each = found[way]
            found[way] = [each[0] and text == expected, each[1] + calls, each[2] + perf_counter() - begun]
    return [Row(pair.name, way, same, len(LENGTHS) * new / calls, seconds) for way, (same, calls, seconds) in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.assisted", description=__doc__)
    parser.add_argument("--new", type=int, default=48, help="tokens a row")
    parser.add_argument("--seconds", action="store_true", help="print seconds, too")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    heads = ["drafter", "run by", "text of `generate`", "tokens a call", *(["seconds"] if given.seconds else [])]
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        for pair in pairs(Path(folder)):
            for row in compared(pair, given.new):
                cells = [row.name, row.way, "yes" if row.same else "no", f"{row.tokens_per_call:.2f}"]
                print("| " + " | ".join([*cells, *([f"{row.seconds:.2f}"] if given.seconds else [])]) + " |", flush=True)
                right = right and row.same
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
