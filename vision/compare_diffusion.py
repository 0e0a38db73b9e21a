"""Whole pictures by speculative sampling of diffusion chains: calls of the network and seconds, beside plain decoding.

    python vision/compare_diffusion.py        (20 minutes on one busy CPU core)

Two targets. The mixture is the published benchmark of draft trees (Bullo et al. 2026): 5 round Gaussians in 512 dimensions, flow matching
with churn 0.06, the 28 noisy ones of 30 steps; its network is in closed form. "fashion" is a small UNet2DModel trained here on
Fashion-MNIST (MMSPEC_DATA, default ../shared/data), made smaller, and a smaller one for its drafts; a trained pair is kept in --work.
Ratios are steps / calls of one picture at a time, however many states a call holds: what latency may gain. Rows count those states.
"""

import os
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

from mmspec.bench.synthetic.diffusion import GaussianMixtureData, MixtureNet, interpolating
from mmspec.core.control import Fixed
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.rules.block import Block
from mmspec.core.rules.d_grs import dgrs
from mmspec.core.rules.token import Token
from mmspec.drafters.jacobi.frozen import FrozenTarget
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Comb, draw_with_replacement
from mmspec.minis import pictures
from mmspec.train import Fit, fit
from mmspec.utils.files import write_json
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.vision.codes.tokenizer import as_tensor
from mmspec.vision.diffusion.pipeline import chains
from mmspec.vision.diffusion.target import DiffusionTarget
from mmspec.vision.diffusion.x0_prediction import X0Prediction

SCHEDULE = {"num_train_timesteps": 1000, "clip_sample": True, "beta_schedule": "squaredcos_cap_v2", "timestep_spacing": "trailing"}


def benchmark(size: int, steps: int = 30, churn: float = 0.06) -> DiffusionTarget:
    """The mixture's chain: Euler steps of the reverse SDE with churn, without the first and the last, which have no noise."""
    levels = torch.linspace(1, 1 / 1000, steps, dtype=torch.float64)
    s, h = levels[1:-1], levels[1:-1] - levels[2:]
    pull = churn**2 / (1 - s)
    noise_schedule = NoiseSchedule(1000 * s, 1 - h * pull, -h * (1 + pull * (1 - s)), churn * (2 * s * h / (1 - s)).sqrt())
    net = MixtureNet(GaussianMixtureData.random(size), interpolating, "flow")
    return DiffusionTarget(net, noise_schedule, torch.Size((size, 1, 1)), X0Prediction(torch.ones_like(s), -s, torch.zeros_like(s), 1.0))


def unet(side: int, *widths: int) -> UNet2DModel:
    down, up = ("DownBlock2D",) * len(widths), ("UpBlock2D",) * len(widths)
    sizes = {"sample_size": side, "in_channels": 1, "out_channels": 1, "layers_per_block": 1, "norm_num_groups": 8}
    return UNet2DModel(block_out_channels=widths, down_block_types=down, up_block_types=up, add_attention=False, **sizes)


def trained(widths: tuple[int, ...], pixels: torch.Tensor, steps: int, work: Path) -> UNet2DModel:
    """A network that predicts noise, trained for `steps` steps of 64 pictures `pixels` [N, 1, S, S]."""
    torch.manual_seed(0)
    net, scheduler = unet(pixels.shape[-1], *widths), DDPMScheduler(**SCHEDULE)

    def loss(model: Any, turn: int) -> torch.Tensor:
        keys = torch.Generator().manual_seed(turn)
        some = pixels[torch.randint(len(pixels), (64,), generator=keys)]
        noise, t = torch.randn(some.shape, generator=keys), torch.randint(1000, (64,), generator=keys)
        return (model(scheduler.add_noise(some, noise, t), t).sample - noise).square().mean()

    fit(net, loss, Fit(steps=steps, lr=1e-3, weight_decay=0.01), work / f"{'-'.join(map(str, widths))}.pt", title=f"unet {widths}")
    return net.eval()


def measured(target: DiffusionTarget, count: int, ways: dict[str, tuple[Any, int, Any]], rounds: int) -> dict[str, dict]:
    """Calls, rows and acceptance of each way over `count` pictures, and seconds of one picture beside plain decoding's, interleaved."""
    print(target.shape.numel(), "numbers,", target.noise_schedule.steps, "steps")
    found, rows = {}, []
    hook = target.net.register_forward_hook(lambda module, given, out: rows.append(len(given[0])))
    for name, (drafter, length, rule) in ways.items():
        rows.clear()
        stats = chains(target, drafter, rule, count, control=Fixed(length)).stats
        accepted = [round(share, 2) for share in stats.acceptance_by_position]
        found[name] = {"ratio": stats.tokens_per_call, "calls": stats.row_calls / count, "rows": sum(rows) / count, "accepted": accepted}
        print(f"{name:28} {found[name]['ratio']:.2f} x, {found[name]['calls']:.1f} calls, {found[name]['rows']:.0f} rows, {accepted[:4]}")
    hook.remove()
    ratios: dict[str, list[float]] = {}
    for turn in range(rounds):
        seconds = {}
        for name, (drafter, length, rule) in ways.items():
            began = perf_counter()
            chains(target, drafter, rule, 1, control=Fixed(length), seed=turn)
            seconds[name] = perf_counter() - began
        for name, spent in seconds.items():
            ratios.setdefault(name, []).append(seconds["plain"] / spent)
    for name, each in ratios.items():
        found[name]["speed"] = {"median": statistics.median(each), "low": min(each), "high": max(each)}
        print(f"{name:28} {statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f}) x plain decoding's speed, one picture")
    return found


def ways(lengths: list[int], only: str, net: DiffusionTarget | None = None) -> dict[str, tuple[Any, int, Any]]:
    table: dict[str, tuple[Any, int, Any]] = {"plain": (NoDraft(), 0, Token())}
    for length in lengths:
        for reuse in ("root", "parent", "nearest"):
            table[f"frozen, {reuse}, {length}"] = (FrozenTarget(reuse), length, Token())
        table[f"frozen, output, {length}"] = (FrozenTarget(hold="output"), length, Token())
        table[f"frozen, block, {length}"] = (FrozenTarget(), length, Block())
        table[f"frozen, 4 siblings, {length}"] = (FrozenTarget(shape=Comb(4, draw_with_replacement)), length, dgrs())
        if net is not None:
            table[f"smaller net, {length}"] = (ModelDrafter(net), length, Token())
    return {name: way for name, way in table.items() if only in name or name == "plain"}


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--pictures", type=int, default=100, help="of the mixture; a tenth of them of fashion")
    parser.add_argument("--lengths", type=int, nargs="+", default=[3, 5, 8, 16])
    parser.add_argument("--only", default="", help="the ways whose names hold this")
    parser.add_argument("--mixture", type=int, least=0, default=512, help="numbers of a state of the mixture; 0 leaves it out")
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 250], help="of fashion's chains")
    parser.add_argument("--training", type=int, least=0, default=2000, help="steps of training; 0 leaves fashion out")
    parser.add_argument("--side", type=int, default=16, help="pixels of fashion's pictures")
    parser.add_argument("--rounds", type=int, least=0, default=3, help="interleaved rounds of seconds; 0 for none")
    parser.add_argument("--work", type=Path, default=Path("build/diffusion"))
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="few and small")
    args = parser.parse_args()
    if args.smoke:
        args.pictures, args.lengths, args.steps, args.training, args.rounds, args.mixture = 2, [3], [6], 2, 0, 16
    args.work.mkdir(parents=True, exist_ok=True)
    rows = {}
    if args.mixture:
        rows["mixture"] = measured(benchmark(args.mixture), args.pictures, ways(args.lengths, args.only), 0)
    if args.training:
        data = Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
        grey = (
            torch.randint(256, (64, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
            if args.smoke
            else pictures.fashion(data)[0]
        )
        pixels = torch.nn.functional.interpolate(as_tensor(grey), args.side, mode="area")
        nets = [trained(widths, pixels, args.training, args.work) for widths in ((24, 48), (8, 16))]
        for steps in args.steps:
            target, small = (DiffusionTarget.of(DDPMPipeline(net, DDPMScheduler(**SCHEDULE)), steps) for net in nets)
            plan, few = ways(args.lengths, args.only, small), max(2, args.pictures // 10)
            rows[f"fashion, {steps} steps"] = measured(target, few, plan, args.rounds)
    about = provenance(torch.device("cpu"))
    print(machine(about), about["date"])
    if args.out:
        write_json(args.out, {"rows": rows, "settings": {k: str(v) for k, v in vars(args).items()}, "provenance": about})


if __name__ == "__main__":
    run_recipe(main)
