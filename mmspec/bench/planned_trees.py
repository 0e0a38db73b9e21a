"""What a draft tree brings on a pair of target and drafter, and what drafting and verifying cost there."""

from collections.abc import Callable, Sequence
from typing import Any

from mmspec.core.decode import each
from mmspec.core.records import Step
from mmspec.core.stats import Stats
from mmspec.drafters.trees.calibration import Calibration, Costs, calibrate, measure_costs, verify_seconds
from mmspec.drafters.trees.planned import NodeAcceptance, TimedDrafter
from mmspec.drafters.trees.static import Template
from mmspec.loading.text import Pair
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.drafters import drafter_of
from mmspec.run.rules import distributions_for, rule_of

_TIMED = Template.branching((4, 1, 1, 1))  # what a drafter without a model of its own is timed on


def measure_tree(
    pair: Pair, prompts: Sequence[str], tree: Template, *, batch_size: int = 8, seed: int = 0
) -> tuple[Stats, Calibration, NodeAcceptance]:
    """Generate with `tree`, whole in every round.

    Args:
        pair: target and drafter with their settings.
        prompts: texts.
        tree: the template to draft with.
        batch_size: prompts at a time.
        seed: row r of all batches together uses seed `seed` + r.

    Returns:
        Statistics, acceptance by level and rank, and acceptance by node.
    """
    nodes = NodeAcceptance(tree)

    def play(batch: Any, /, *, tree: Template, seed: int, on_step: Callable[[Step], None]) -> None:
        pair.generate(batch, tree=tree, draft_length=tree.depth, seed=seed, on_step=each(on_step, nodes))

    batches = (pair.inputs(prompts[first : first + batch_size]) for first in range(0, len(prompts), batch_size))
    return *calibrate(play, batches, tree, seed), nodes


def measure_tree_costs(pair: Pair, prompt: str, nodes: int) -> Costs:
    """Measure the seconds of a drafter's level and of verify steps of up to `nodes` draft tokens after `prompt`.

    A drafter model is timed step by step; one that reads the target, by its rounds in a generation.

    Raises:
        ValueError: if the drafter drafts nothing.
    """
    run = pair.config.run
    rule = rule_of(pair.accept, run.temperature, run.top_k, run.top_p)
    distributions = distributions_for(rule, run.temperature, run.top_k, run.top_p, run.repetition_penalty, ())
    target = HFTarget(pair.target, family_of(pair.target), distributions)
    sizes, inputs = sorted({0, 1, *(size for size in (2, 4, 8, 16, 32, 64, 128) if size < nodes), nodes}), pair.inputs([prompt])
    if pair.model is not None:
        return measure_costs(target, HFTarget(pair.model, family_of(pair.model), distributions), inputs, sizes)
    tree = _TIMED.cut(most_levels(pair, _TIMED.depth))
    timed = TimedDrafter(drafter_of(pair.drafter, target, rule, tree))
    pair.generate(inputs, drafter=timed, draft_length=tree.depth)
    return Costs(timed.seconds_a_level(tree.depth), verify_seconds(target, inputs, sizes))


def most_levels(pair: Pair, wanted: int) -> int:
    """Return `wanted`, or fewer where the drafter has fewer levels, as Medusa's heads do."""
    return min(wanted, getattr(pair.drafter, "most", None) or wanted)


def node_table(nodes: NodeAcceptance) -> str:
    """Return the measured acceptance of every node as a Markdown table."""
    shares, chances = nodes.shares(), nodes.on_path()
    lines = ["| node | judged | kept after its parent | kept with its path |", "|---|---|---|---|"]
    for path, tries in zip(nodes.template.paths, nodes.tries, strict=True):
        share = f"{shares[path]:.3f}" if tries else ""
        lines.append(f"| {' '.join(map(str, path))} | {tries} | {share} | {chances[path]:.3f} |")
    return "\n".join(lines)
