"""What share of a diffusion head's drafted tokens is accepted, by rule and steps, beside what the divergence of paths foretells.

    python vision/measure_acceptance.py --pictures 60        (a few minutes on one CPU core)

The target writes pictures; after every prefix of theirs the draft draws a path by its own state, and both models say what they make of it.
K = sum_t |m_p - m_q|^2 / sigma_t^2 along that path is twice the divergence of the paths. Shares of tokens accepted, in the mean:

    path        min(1, P(path) / Q(path))                  foretold: 2 Phi(-sqrt(K) / 2)
    stepwise    prod_t min(1, p_t / q_t)                   foretold: prod_t 2 Phi(-delta_t / 2), delta_t^2 the terms of K
    aligned     2 Phi(-|f_p - f_q| / (2 sigma_out)), of two chains fed the same noise

Every rule is the more accepted the less its distribution differs, whatever the window: it is a token's chance that is measured here.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.bench.check.projection import taught
from mmspec.core.distributions.reflection import agreement
from mmspec.core.noise import Noise
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import provenance
from mmspec.vision.continuous.generation import pair_of
from mmspec.vision.continuous.latents import Sampling

FIGURES = ("path", "foretold path", "stepwise", "foretold stepwise", "aligned", "K", "median K")


@torch.no_grad()
def measured(target: Any, classes: list[int], tokens: Tensor, sampling: Sampling, seed: int) -> dict[str, Tensor]:
    """For every token of `tokens` [B, S, d], the chance that a draft for its place is accepted by each rule, and the path gap: [B, S]."""
    noise = Noise.from_seed(seed, len(classes))
    distributions = {}
    for form in ("path", "aligned"):
        prompt, own, drafting = pair_of(target, classes, form, most=2, noise=noise, sampling=sampling)
        steps = (sampling.steps or target.model.config.head_steps) + 1
        values = tokens[..., None, :].expand(*tokens.shape[:2], steps, -1) if form == "path" else tokens  # only the last state is read
        distributions[form] = [taught(side, prompt, values) for side in (own, drafting)]
    p, q = distributions["path"]
    path, _ = q.drawn(noise.shared(torch.arange(tokens.shape[1]).expand(len(classes), -1)))
    states = path[..., 1:, :]
    own, theirs = p.steps(path), q.steps(path)
    ratio = own.log_ratio(theirs, states)  # [B, S, T]
    gap = torch.linalg.vector_norm(own.gap(theirs), dim=-1)
    total = gap.square().sum(-1)
    p, q = distributions["aligned"]
    return {
        "path": ratio.sum(-1).exp().clamp(max=1),
        "foretold path": agreement(total.sqrt()),
        "stepwise": ratio.clamp(max=0).sum(-1).exp(),
        "foretold stepwise": agreement(gap).prod(-1),
        "aligned": agreement(torch.linalg.vector_norm(p.gap(q), dim=-1)),
        "K": total,
    }


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--pictures", type=int, default=60, help="of 49 tokens each (60)")
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 16, 32, 64], help="of the chain (8 16 32 64)")
    parser.add_argument("--sigma-out", type=float, nargs="+", help="noise on every token (the model's own)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the table here as JSON")
    parser.add_argument("--smoke", action="store_true", help="two pictures, few steps")
    args = parser.parse_args()
    if args.smoke:
        args.pictures, args.steps = 2, [2, 4]
    target = mmspec.load("continuous").target
    config = target.model.config
    classes = [row % config.classes for row in range(args.pictures)]
    table = []
    print(f"{'steps':>5} {'sigma':>5} " + " ".join(f"{name:>17}" for name in FIGURES))
    for sigma in args.sigma_out or [config.sigma_out]:
        before = Sampling(steps=min(args.steps), sigma_out=sigma)
        tokens = mmspec.vision.generate(target, classes, method="plain", sampling=before, seed=args.seed).tokens.flatten(1, 2)
        for steps in args.steps:
            parts = [
                measured(target, classes[rows], tokens[rows], Sampling(steps=steps, sigma_out=sigma), args.seed + rows.start)
                for rows in (slice(first, first + 20) for first in range(0, len(classes), 20))
            ]
            every = {name: torch.cat([part[name].flatten() for part in parts]).double() for name in parts[0]}
            line = {name: values.mean().item() for name, values in every.items()} | {"median K": every["K"].median().item()}
            table.append({"steps": steps, "sigma_out": sigma, "tokens": len(every["K"])} | line)
            print(f"{steps:5} {sigma:5.2f} " + " ".join(f"{line[name]:17.3f}" for name in FIGURES), flush=True)
    if args.out:
        write_json(args.out, {"rows": table, "provenance": provenance(target.model.device)})


if __name__ == "__main__":
    main()
