"""Plan VADUSA's sparse draft tree for mini speech: count which ranks of which head are kept, and take the likeliest paths.

    python speech/plan_tree.py                                  # writes mmspec/minis/speech/tree.json
    python speech/plan_tree.py --drafter build/speech/medusa --nodes 32 --out tree.json
    mmspec speech "three five seven" --drafter vadusa --tree tree.json

Calibration says texts that the table of `compare_methods.py` does not share, with a tree broad at every level, as the distributions of
speech codes are flat. Siblings are the heads' likeliest codes, and the rule is `match`: VADUSA's at tau 1, which keeps what plain sampling
draws.
"""

from pathlib import Path

from mmspec.drafters.checkpoints.load import load_drafter
from mmspec.drafters.trees.calibration import broad, calibrate
from mmspec.drafters.trees.planners import expected_length, sparse_tree
from mmspec.drafters.trees.static import Template
from mmspec.minis import HOME
from mmspec.minis import speech_data as spoken
from mmspec.minis.speech_model import speaker
from mmspec.speech import synthesize
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--mini", type=Path, default=HOME / "speech")
    parser.add_argument("--drafter", type=Path, help="a folder of heads; default: MINI/drafters/vadusa")
    parser.add_argument("--nodes", type=int, default=96)
    parser.add_argument("--utterances", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--least", type=int, default=100, help="draft tokens judged before a rank at a level is planned on")
    parser.add_argument("--out", type=Path, help="default: MINI/tree.json")
    parser.add_argument("--smoke", action="store_true", help="two short utterances, a tree of six")
    args = parser.parse_args()
    seconds = None
    if args.smoke:
        args.utterances, args.nodes, args.least, seconds = 4, 6, 1, 0.4
        args.out = args.out or Path("tree.json")
    target = speaker(args.mini)
    heads = load_drafter(args.drafter or args.mini / "drafters" / "vadusa", target.model)

    def play(batch: list[tuple[str, str]], *, tree: Template, seed: int, on_step) -> None:
        texts, voices = zip(*batch, strict=True)
        given = {"tree": tree, "draft_length": tree.depth, "max_seconds": seconds, "on_step": on_step}
        synthesize(target, texts, heads, accept="match", seed=seed, voice=voices, **given)

    asked = spoken.requests(args.utterances, seed=77)
    batches = [asked[first : first + args.batch_size] for first in range(0, len(asked), args.batch_size)]
    half = max(1, len(batches) // 2)
    _, counts = calibrate(play, batches[:half], broad(args.nodes, heads.most, 0.8), seed=5000)
    rates = counts.accuracy(args.least)
    tree = sparse_tree(rates, args.nodes)
    stats, _ = calibrate(play, batches[half:] or batches, tree, seed=6000)
    write_json(args.out or args.mini / "tree.json", tree.to_json())
    levels, expected = " ".join(str(len(level.rank)) for level in tree.levels), expected_length(tree, rates)
    print(f"{tree.size} nodes, by level {levels}: {expected:.2f} codes a call expected, {stats.tokens_per_call:.2f} measured")


if __name__ == "__main__":
    main()
