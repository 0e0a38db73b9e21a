"""python -m tests.soak threads|text|pictures|speech|recommendations [--calls N] [--threads N]

Exits with 1 and says why if an output is wrong or something is left behind.
"""

import argparse
import sys

import torch

from tests.soak.threads import family_world, llama_world, run_threads

CALLS = {"threads": 200, "text": 2000, "pictures": 300, "speech": 300, "recommendations": 300}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("what", choices=CALLS)
    parser.add_argument("--calls", type=int, default=None)
    parser.add_argument("--threads", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    calls = asked.calls or CALLS[asked.what]
    if asked.what == "threads":
        return _threads(asked.threads, calls)
    from tests.soak.memory import soak

    return soak(asked.what, calls)


def _threads(threads: int, calls: int) -> int:
    wrong: list[str] = []
    for name, world in {"Llama": llama_world(), "T5": family_world("T5"), "BART": family_world("BART")}.items():
        found = run_threads(world, threads, calls, lambda line, name=name: print(f"{name}: {line}", flush=True))
        print(f"{name}: {threads} threads x {calls} calls, {len(world.drafters)} drafters in turn: {len(found)} wrong", flush=True)
        wrong += found
    print("\n".join(wrong[:20]) if wrong else "every output right; state dict, hooks, attributes, configs and generate as before")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
