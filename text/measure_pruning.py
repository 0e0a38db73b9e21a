"""What pruning a draft tree inside the target's forward could save (ProPD, Zhong et al. 2024), in counts on recorded rounds.

    python text/measure_pruning.py                          # the shipped mini, its own drafter, trees of 32 draft tokens
    python text/measure_pruning.py --model PATH --drafter PATH --prompts prompts.txt --nodes 64 --layers 4 8 16 --out pruning.json

A linear head on the states after an early layer is fitted to the target's last states, by least squares on text that the target writes. In
every round of a tree, a node is pruned unless its token is among the head's k most likely ones after its parent, and its parent stays.
Pruned nodes run the layers up to the head only. Printed: nodes pruned, tokens a call that are left, and the columns of a call, as whole
columns of the target with the head's share added; below, smaller trees without pruning, which are run themselves. Greedy decoding.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.explain.observed import target_of
from mmspec.bench.planned_trees import measure_tree, most_levels
from mmspec.core.records import CONTEXT
from mmspec.drafters.trees.calibration import broad
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.loading.text import Pair, load_pair, named_drafter
from mmspec.models.stack import stack
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.run.drafters import drafter_of
from mmspec.run.rules import rule_of
from mmspec.utils.files import read_prompts, write_json
from mmspec.utils.places import RecipeParser


@torch.no_grad()
def fitted(pair: Pair, prompts: Sequence[str], layers: Sequence[int], seeds: int, new: int) -> dict[int, Tensor]:
    """Layer -> [H + 1, H], which maps a state after the layer to the last one; fitted on greedy and sampled text of the target."""
    inputs, found = pair.inputs(prompts), []
    for seed in range(seeds):
        out = pair.generate(inputs, drafter=None, tree=None, temperature=min(seed, 1), seed=seed, max_new_tokens=new)
        own = torch.arange(out.tokens.shape[1]) < out.lengths[:, None]
        ids, mask = torch.cat([inputs["input_ids"], out.tokens], 1), torch.cat([inputs["attention_mask"], own], 1)
        states = pair.target(ids, attention_mask=mask, output_hidden_states=True).hidden_states
        found.append([states[layer][mask.bool()].double() for layer in (*layers, -1)])
    last = torch.cat([each[-1] for each in found])
    maps = {}
    for place, layer in enumerate(layers):
        states = torch.cat([each[place] for each in found])
        states = torch.cat([states, torch.ones(len(states), 1, dtype=states.dtype)], 1)
        gram = states.T @ states
        maps[layer] = torch.linalg.solve(gram + 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype), states.T @ last)
    return maps


class Recorder:
    """A drafter that is left as it is, with the rank of every draft token under the heads recorded round by round."""

    def __init__(self, drafter: Any, head: Any, maps: dict[int, Tensor]):
        self.drafter, self.head, self.maps = drafter, head, maps
        self.rounds: list[tuple[list[int], list[int], dict[int, list[int]]]] = []  # parents, accepted columns, layer -> ranks

    def begin(self, prompt: Any, session: Any) -> "Recorder":
        session.watch(tuple(self.maps))
        self.inner = self.drafter.begin(prompt, session)
        return self

    def propose(self, *args: Any) -> Any:
        return self.inner.propose(*args)

    @torch.no_grad()
    def observe(self, draft: Any, scored: Any, verdict: Any, committed: Any) -> None:
        states = scored.hidden[:, -draft.size :].chunk(len(self.maps), -1)
        ranks = {layer: self._ranks(draft, each, self.maps[layer]) for (layer, each) in zip(self.maps, states, strict=True)}
        for row, values in enumerate(committed.values):
            if values and committed.drafted[row]:
                kept = verdict.keep[row, draft.roots :][: committed.accepted[row]].tolist()
                self.rounds.append((draft.parents[row].tolist(), kept, {layer: each[row].tolist() for layer, each in ranks.items()}))
        self.inner.observe(draft, scored, verdict, committed)

    def _ranks(self, draft: Any, states: Tensor, found: Tensor) -> Tensor:
        """[B, N]: how many tokens the head holds for more likely than a node's own, after its parent."""
        logits = self.head(states @ found[:-1].to(states.dtype) + found[-1].to(states.dtype))
        above = logits.gather(1, draft.parents.clamp_min(0)[..., None].expand(-1, -1, logits.shape[-1]))
        return (above > above.gather(2, draft.nodes[..., None])).sum(-1)


def pruned(rounds: Sequence[Any], layer: int, k: int) -> tuple[float, float, float]:
    """(nodes a call, nodes left, tokens a call left)."""
    nodes = left = tokens = 0
    for parents, kept, ranks in rounds:
        stays: list[bool] = []
        for column, parent in enumerate(parents):
            stays.append(parent == CONTEXT or (parent >= 0 and stays[parent] and ranks[layer][column] < k))
        own = [column for column, parent in enumerate(parents) if parent >= 0]
        nodes, left = nodes + len(own), left + sum(stays[column] for column in own)
        tokens += 1 + next((n for n, column in enumerate(kept) if not stays[column]), len(kept))
    return nodes / len(rounds), left / len(rounds), tokens / len(rounds)


def measure(pair: Pair, prompts: list[str], args: argparse.Namespace) -> list[list[Any]]:
    seen, unseen = prompts[::2], prompts[1::2]
    depth, layers = most_levels(pair, args.depth), len(stack(pair.target))
    calibration = measure_tree(pair, seen, broad(args.nodes, depth))[1].accuracy()
    head, size = pair.target.get_output_embeddings(), sum(each.numel() for each in pair.target.parameters())
    maps = fitted(pair, seen, args.layers, args.seeds, args.new)
    tree = sparse_tree(calibration, args.nodes)
    rule, inputs = rule_of(pair.accept, 0.0), pair.inputs(unseen)
    drafter = Recorder(drafter_of(pair.drafter, target_of(pair, inputs), rule, tree), head, maps)
    pair.generate(inputs, drafter=drafter, draft_length=tree.depth, tree=None)
    rows = []
    for layer in args.layers:
        share, cost = layer / layers, (head.weight.numel() + maps[layer].numel()) / size
        for k in args.top:
            nodes, left, tokens = pruned(drafter.rounds, layer, k)
            columns = 1 + nodes * share + left * (1 - share)
            rows.append([f"head after layer {layer} of {layers}, top {k}", nodes, left, tokens, columns, columns + (1 + nodes) * cost])
    for count in sorted({args.nodes, *args.smaller}):
        small = tree if count == args.nodes else sparse_tree(calibration, count)
        tokens = measure_tree(pair, unseen, small)[0].tokens_per_call
        rows.append([f"tree of {count}, not pruned", small.size, small.size, tokens, 1 + small.size, 1 + small.size])
    return rows


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", default="mini", help="target: mini, or a path")
    parser.add_argument("--drafter", help="a model's or a trained drafter's path; the mini's model by default")
    parser.add_argument("--prompts", help="one a line; the mini's examples by default")
    parser.add_argument("--nodes", type=int, default=32, help="draft tokens of the tree that is pruned")
    parser.add_argument("--smaller", type=int, nargs="*", default=[4, 8, 12, 16, 24], help="trees to compare with")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8], help="layers behind which a head prunes")
    parser.add_argument("--top", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64], help="tokens of the head that stay")
    parser.add_argument("--new", type=int, default=96, help="new tokens of a prompt")
    parser.add_argument("--seeds", type=int, default=8, help="texts a prompt that the heads are fitted on")
    parser.add_argument("--out", help="JSON of the rows")
    parser.add_argument("--smoke", action="store_true", help="four prompts, a few tokens, a tree of six")
    args = parser.parse_args()
    if args.smoke:
        args.nodes, args.smaller, args.depth, args.layers, args.top, args.new, args.seeds = 6, [2], 3, [2], [1, 4], 8, 1
    kind, path = ("model", None) if args.drafter is None else named_drafter(args.drafter)
    run, drafter = RunSection(max_new_tokens=args.new), DrafterSection(kind=kind, path=path)
    pair = load_pair(Config(target=TargetSection(path=args.model), drafter=drafter, run=run))
    prompts = list(pair.examples) if args.prompts is None else [each["prompt"] for each in read_prompts(args.prompts)]
    rows = measure(pair, prompts[:4] if args.smoke else prompts, args)
    print("| tree | nodes a call | left | tokens a call | columns | with the head |\n|---|---|---|---|---|---|")
    print(*(f"| {name} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |" for name, *figures in rows), sep="\n")
    if args.out:
        write_json(args.out, [dict(zip(("tree", "nodes", "left", "tokens", "columns", "with_head"), row, strict=True)) for row in rows])


if __name__ == "__main__":
    main()
