"""Draw a folder of captioned scenes: one or two objects of a colour, shape, size and corner on white.

    python vision/render_scenes.py scenes --count 10000        (a minute on one CPU core)

The folder holds images/ and captions.jsonl, whose lines have the file, the caption and the attributes that a judge checks; it is what the
recipes of this folder take as --pictures. The same seed gives the same pictures.
"""

import json
from pathlib import Path

from mmspec.minis.drawn.captioned import captioned_scene, draw_captioned
from mmspec.minis.picture_sets.folder import CAPTIONS
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.files import whole_folder
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("build/scenes"), help="a folder that does not exist yet")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=64, help="pixels a side")
    parser.add_argument("--objects", type=int, default=2, help="most objects of a scene, 1 to 4")
    parser.add_argument("--shift", type=float, default=0.125, help="movement of objects, as a share of half a side: -SHIFT, 0 or SHIFT")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--smoke", action="store_true", help="24 scenes")
    args = parser.parse_args()
    refuse_several_processes()
    if args.out.exists():
        parser.error(f"{args.out} exists already: give a folder that does not")
    if not 1 <= args.objects <= 4 or args.size < 16 or args.count < 1:
        parser.error("give 1 to 4 objects, 16 pixels a side at least, and 1 scene at least")
    count = 24 if args.smoke else args.count
    with whole_folder(args.out) as inside:
        (inside / "images").mkdir()
        lines = []
        for number in track(range(count), "drawing", disable=count < 100):
            scene = captioned_scene(args.seed, number, args.objects, args.shift)
            row = {"file": f"images/{number:06}.png", "caption": scene.caption, "attributes": scene.attributes}
            draw_captioned(scene, args.size).save(inside / row["file"])
            lines.append(json.dumps(row))
        (inside / CAPTIONS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{count} scenes in {args.out}, the first: {json.loads(lines[0])['caption']}")


if __name__ == "__main__":
    run_recipe(main)
