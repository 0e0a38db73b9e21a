"""What drawing, comparing and truncating cost beside the forwards of the networks, with real weights and a large vocabulary.

    python text/fetch_model.py
    python text/measure_sampling.py --model ~/.cache/mmspec/models/gemma-3-270m
    python text/measure_sampling.py --jacobi                    # 16,384 image codes, windows of 32, LlamaGen-B's sizes

Every setting generates the same text twice: on supports and with searched draws, and with tables of the whole vocabulary and all noise
computed. The share is the time outside forwards, of target and drafter, over the time of all rounds but the first. Tokens must be the
same. The drafter of the language model is made of its first layers.
"""

import argparse
import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.drafters.jacobi.decoding import Jacobi
from mmspec.drafters.shapes import drawn
from mmspec.models.session import HFSession
from mmspec.utils.files import write_json
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe

PROMPT = "The history of the city begins with a small harbour at the mouth of the river, where"
LLAMAGEN_B = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 16384}
TINY = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 9000}


def now() -> tuple[float, float]:
    return perf_counter(), process_time()


class Clock:
    """Wall-clock and processor seconds inside and outside forwards, round by round."""

    def __init__(self):
        self.inside, self.rounds = [0.0, 0.0], []
        self.last = now()

    def round(self, step: Any) -> None:
        ended = now()
        self.rounds.append([(total - before, inside) for total, before, inside in zip(ended, self.last, self.inside, strict=True)])
        self.last, self.inside = ended, [0.0, 0.0]

    def share(self, kind: int) -> float:
        """Median share of the time outside forwards: 0 wall-clock, 1 processor."""
        return median(1 - inside / total for total, inside in (each[kind] for each in self.rounds[1:]))


@contextmanager
def timed(clock: Clock) -> Iterator[None]:
    forward = HFSession._forward

    def counted(session: HFSession, *given: Any, **named: Any) -> Any:
        before = now()
        out = forward(session, *given, **named)
        clock.inside = [inside + after - then for inside, after, then in zip(clock.inside, now(), before, strict=True)]
        return out

    with patch.object(HFSession, "_forward", counted):
        yield


def first_layers(model: Any, layers: int) -> Any:
    """A model of the first layers of `model`, with its embedding and head."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    small = type(model)(config).eval()
    small.load_state_dict({name: value for name, value in model.state_dict().items() if name in small.state_dict()})
    return small


def run(model: Any, inputs: Any, drafter: Any, length: int, new: int, **sampling: Any) -> tuple[list[int], Clock]:
    clock = Clock()
    with timed(clock):
        out = mmspec.text.generate(model, inputs, drafter, draft_length=length, max_new_tokens=new, seed=1, on_step=clock.round, **sampling)
    return out.tokens[0].tolist(), clock


def compare(name: str, *given: Any, **sampling: Any) -> dict:
    """One line of the table."""
    tokens, clock = run(*given, **sampling)
    with ExitStack() as stack:  # tables of the whole vocabulary and all of the noise
        for module in ("core.gumbel", "core.distributions.categorical", "core.processors.truncation"):
            stack.enter_context(patch(f"mmspec.{module}.LARGE", 1 << 40))
        expected, before = run(*given, **sampling)
    spent, shares = median(each[0][0] for each in clock.rounds[1:]), [each.share(kind) for each in (clock, before) for kind in (0, 1)]
    new, old = (f"{wall:.1%} ({cpu:.1%})" for wall, cpu in (shares[:2], shares[2:]))
    print(f"| {name} | {1000 * spent:.0f} | {new} | {old} | {'yes' if tokens == expected else 'no'} |", flush=True)
    return {"setting": name, "round_ms": 1000 * spent, "same": tokens == expected, "shares": shares, "rounds": len(clock.rounds)}


def language_model(args: argparse.Namespace) -> tuple[list, dict[str, dict]]:
    """The model, its prompt, a drafter of its first layers and the draft length; and the settings by name."""
    if args.smoke:
        model, inputs = random_model(TINY), {"input_ids": torch.ones(1, 4, dtype=torch.long)}
    else:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
        inputs = AutoTokenizer.from_pretrained(args.model)(PROMPT, return_tensors="pt")
    settings = {(rule, p): {"accept": rule, "temperature": 0.7, "top_p": p} for rule in ("coupled", "token") for p in (0.9, None)}
    names = {f"{rule}, T = 0.7{', top-p 0.9' if p else ''}": each for (rule, p), each in settings.items()}
    return [model, inputs, first_layers(model, args.layers), 7, args.new], names


def jacobi(args: argparse.Namespace) -> tuple[list, dict[str, dict]]:
    """The same for Jacobi windows. Scores have a standard deviation of 2.2, which gives about 7 nats, as image codes have."""
    model = random_model(LLAMAGEN_B)
    model.lm_head.weight.data *= 4
    settings = {f"jacobi, {name}": {"temperature": 1.0, "top_k": k} for name, k in (("all codes", None), ("top-k 2000", 2000))}
    return [model, {"input_ids": torch.ones(1, 1, dtype=torch.long)}, Jacobi(32, drawn), 32, args.new], settings


def random_model(sizes: dict[str, int]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=1024)).eval()


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", type=Path, help="folder of a causal language model")
    parser.add_argument("--jacobi", action="store_true", help="Jacobi windows of 32 over 16,384 codes, random weights")
    parser.add_argument("--layers", type=int, default=4, help="layers of the drafter")
    parser.add_argument("--new", type=int, default=24, help="new tokens")
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="a tiny model of random weights")
    args = parser.parse_args()
    if args.smoke:
        args.layers, args.new = 1, 32
    elif (args.model is None) != args.jacobi:
        parser.error("give --model with a folder, or --jacobi")
    given, settings = jacobi(args) if args.jacobi and not args.smoke else language_model(args)
    print("| setting | ms a round | share outside forwards (processor time) | with tables | same tokens |\n|---|---|---|---|---|")
    found = {"rows": [compare(name, *given, **each) for name, each in settings.items()], "provenance": provenance(torch.device("cpu"))}
    print(f"\n{machine(found['provenance'])}; torch {torch.__version__}")
    if args.out is not None:
        write_json(args.out, found)


if __name__ == "__main__":
    run_recipe(main)
