"""Write a trained EAGLE, P-EAGLE, DFlash, DFlash 2 or DSpark drafter in the `speculators` layout, for vLLM.

    python text/export_drafter.py build/drafters/eagle3 ./served --model ./big --verifier-name owner/big
    vllm serve ./served                                          # finds the target by the verifier's name
    python text/export_drafter.py ./EAGLE3-big ./served --model ./big --tokens 3 --dtype bfloat16

FOLDER may hold any layout that mmspec.load_drafter reads (docs/formats.md): this also converts published checkpoints. What is written
is read back and must give the same distributions before the command ends well.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import mmspec
from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.checkpoints.published import export_speculators
from mmspec.loading.text import Pair, load_pair
from mmspec.loading.transformers import DTYPES
from mmspec.run.config import Config, RunSection, TargetSection
from mmspec.utils.places import RecipeParser


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two nets hold the same tensors under the same options."""
    tensors = other.state_dict()
    return all(torch.equal(tensor, tensors[name]) for name, tensor in one.state_dict().items() if name in tensors)


def run(folder: Path, out: Path, pair: Pair, tokens: int | None, verifier: str | None, dtype: str) -> None:
    """Load, write, and read back."""
    weights = None if dtype == "auto" else getattr(torch, dtype)
    net = mmspec.load_drafter(folder, pair.target)
    export_speculators(net, out, pair.target, tokens=tokens, verifier_name=verifier, dtype=weights)
    found = mmspec.load_drafter(out, pair.target)
    kept = net if weights is None else net.to(weights).to(pair.target.dtype)
    if not same(kept, found):
        raise ValueError(f"{out} does not hold what {folder} does: compare the two before serving it")
    size = (out / "model.safetensors").stat().st_size / 1e6
    print(f"{net.kind}: {sum(p.numel() for p in net.parameters()):,} parameters, {size:.1f} MB, for {verifier or pair.name}: {out}")


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="of the trained drafter")
    parser.add_argument("out", type=Path, nargs="?", help="a new folder, or that of an earlier export")
    parser.add_argument("--model", default="mini", help="the target: the shipped mini, a folder or a hub name")
    parser.add_argument("--tokens", type=int, help="draft tokens a round when served; default 5, or as many as a block drafter has")
    parser.add_argument("--verifier-name", help="where vLLM finds the target; by default what --model says")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the weights on disk; auto: as they are")
    parser.add_argument("--smoke", action="store_true", help="an untrained drafter of the mini's, written, read back and run")
    args = parser.parse_args()
    try:
        pair = load_pair(Config(target=TargetSection(path=args.model), run=RunSection(max_new_tokens=12)))
        if args.smoke:
            smoke(pair)
            return
        if args.folder is None or args.out is None:
            parser.error("give FOLDER and OUT, or --smoke")
        run(args.folder, args.out, pair, args.tokens, args.verifier_name or args.model, args.dtype)
    except (OSError, ValueError) as error:
        print(f"export_drafter: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def smoke(pair: Pair) -> None:
    """Export an untrained net, and draft with what was written."""
    net = new_net("eagle3", pair.target, {"values": 200})
    net.know(torch.arange(0, 2000, 10))
    net.start_from(pair.target)
    with TemporaryDirectory() as folder:
        save_drafter(net, Path(folder, "own"))
        run(Path(folder, "own"), Path(folder, "served"), pair, 5, "mini", "bfloat16")
        inputs = pair.inputs(list(pair.examples[:2]))
        plain = pair.generate(inputs)
        out = pair.generate(inputs, drafter=mmspec.load_drafter(Path(folder, "served"), pair.target), draft_length=3)
    if out.sequences.tolist() != plain.sequences.tolist():
        raise SystemExit("drafting changed the text")
    print(f"drafted {out.stats.drafted}, accepted {out.stats.accepted}; the text is plain decoding's")


if __name__ == "__main__":
    main()
