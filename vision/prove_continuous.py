"""Which rules over continuous tokens are exact: every way of mini continuous and planted bugs, held to the target's distribution.

    python vision/prove_continuous.py --pictures 150        (some minutes on one CPU core)

Prints p-values of `mmspec.bench.check.projection`: of what was committed, along the drafter's pull, being standard normal. An exact rule's
are anywhere between 0 and 1; some 7,000 tokens are enough for a wrong one's to vanish. `--energy` adds the energy distance between each
way's pictures and plain ones with its permutation p-value: the usual check, which misses most of these bugs.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.bench.check.projection import project
from mmspec.core.rules.base import commit
from mmspec.core.rules.lossy.cspd import CSpD
from mmspec.core.rules.token import Token
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import provenance
from mmspec.vision.continuous.generation import LatentDraft
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.continuous.methods import CONTINUOUS_METHODS

EXACT = [name for name, way in CONTINUOUS_METHODS.items() if way.accept is not None]


class FromTarget(Token):
    """After a rejection, drawn from p as it is, not from what is left of it."""

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p


class MeanOverNumbers(Token):
    """The log-ratio averaged over a token's numbers, where it is a sum."""

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        return (p.log_ratio(q, x) / x.shape[-1]).exp().clamp(max=1)


class NoRollback(Token):
    """Every draft token judged on its own: refused ones are replaced where they stand, those behind them stay."""

    def __call__(self, draft: Any, scored: Any, noise: Any) -> Any:
        if draft.size == draft.roots:
            return super().__call__(draft, scored, noise)
        first, last = draft.roots - 1, draft.valid[:, draft.roots :].sum(-1) + draft.roots - 1
        p = scored.p.at(torch.arange(first, draft.size - 1).expand(len(draft.start), -1))
        position = draft.position()[:, first:-1]
        kept = noise.accept(position, draft.start).below(self.accept_prob(p, draft.q, draft.draft_tokens))
        mended = p.residual(draft.q, draft.draft_tokens).sample(noise.residual(position, draft.start))
        draft.nodes[:, draft.roots :] = torch.where(kept[..., None], draft.draft_tokens, mended)
        own = scored.p.at(last[:, None]).sample(noise.value(draft.position().gather(1, last[:, None])))
        return commit(draft, last, own[:, 0])


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    method: str
    rule: str
    exact: bool
    options: dict[str, Any] = field(default_factory=dict)


def rows(target: Any, steps: int, temperature: float) -> list[Row]:
    """Exact ways first, then the bugs. CSpD is asked about a draft drawn at another temperature, so that its factor is not 1."""
    model = target.model
    noise_schedules = [Sampling(steps=steps).filled(model.config).noise_schedule(t) for t in (1.0, temperature)]
    found = [Row(method, "its own", True) for method in EXACT]
    draft = LatentDraft(target.drafter, temperature=temperature)
    for factor in (False, True):
        rule = CSpD.of(*noise_schedules, model.config.channels, factor=factor)
        name = "CSpD's, with its factor" if factor else "CSpD's, without its factor"
        found.append(Row("aligned", name, not factor, {"accept": rule, "drafter": draft}))
    found += [Row(method, "draws from p after a rejection", False, {"accept": FromTarget()}) for method in ("aligned", "path", "density")]
    found.append(Row("aligned", "mean over a token's numbers", False, {"accept": MeanOverNumbers()}))
    found.append(Row("aligned", "no rollback", False, {"accept": NoRollback()}))
    return found


def energy(one: Tensor, other: Tensor, permutations: int = 200) -> float:
    """Permutation p-value of the energy distance between samples [N, D]."""
    both = torch.cat([one, other])
    far, half, draws = torch.cdist(both, both), len(one), torch.Generator().manual_seed(0)

    def distance(order: Tensor) -> float:
        a, b = order[:half], order[half:]
        return (2 * far[a][:, b].mean() - far[a][:, a].mean() - far[b][:, b].mean()).item()

    seen = distance(torch.arange(len(both)))
    others = [distance(torch.randperm(len(both), generator=draws)) for _ in range(permutations)]
    return (1 + sum(each >= seen for each in others)) / (permutations + 1)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--pictures", type=int, default=150, help="of 49 tokens each (150)")
    parser.add_argument("--steps", type=int, default=8, help="of the diffusion head's chain (8)")
    parser.add_argument("--temperature", type=float, default=0.98, help="of CSpD's draft (0.98)")
    parser.add_argument("--window", type=int, default=5, help="tokens in flight a round (5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--energy", action="store_true", help="energy distances to plain pictures, too")
    parser.add_argument("--out", type=Path, help="write the table here as JSON")
    parser.add_argument("--smoke", action="store_true", help="one picture of two steps, one exact way and every bug once")
    args = parser.parse_args()
    if args.smoke:
        args.pictures, args.steps = 1, 2
    target = mmspec.load("continuous").target
    classes = [row % target.model.config.classes for row in range(args.pictures)]
    table = []
    print(f"{'way':14} {'rule':32} {'exact':6} {'tokens':>6} {'numbers':>8} {'mean':>7} {'sd':>6} {'a call':>6} {'p':>9}")
    given = rows(target, args.steps, args.temperature)
    for number, row in enumerate({row.rule: row for row in given}.values() if args.smoke else given):
        sampling = Sampling() if row.method == "density" else Sampling(steps=args.steps)
        ask = {"window": args.window, "seed": args.seed, "sampling": sampling} | row.options
        seen = project(target, classes, row.method, **ask)
        line = {"method": row.method, "rule": row.rule, "exact": row.exact, "tokens": seen.tokens, "numbers": len(seen.values)}
        line |= {"mean": seen.mean, "deviation": seen.deviation, "p": seen.p_value, "tokens_per_call": seen.stats.tokens_per_call}
        text = f"{row.method:14} {row.rule:32} {'yes' if row.exact else 'no':6} {seen.tokens:6} {len(seen.values):8} {seen.mean:7.3f}"
        text += f" {seen.deviation:6.3f} {line['tokens_per_call']:6.2f} {seen.p_value:9.2g}"
        if args.energy or (args.smoke and number == 0):
            plain = mmspec.vision.generate(
                target.fit(row.method), classes, method="plain", sampling=sampling, seed=args.seed + 10**6
            ).tokens
            own = mmspec.vision.generate(target, classes, method=row.method, **ask).tokens
            line["energy"] = energy(own.flatten(1), plain.flatten(1))
            text += f"  energy {line['energy']:.2f}"
        table.append(line)
        print(text, flush=True)
    if args.out:
        write_json(args.out, {"rows": table, "steps": args.steps, "provenance": provenance(target.model.device)})


if __name__ == "__main__":
    main()
