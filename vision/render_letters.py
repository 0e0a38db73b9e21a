"""Draw a folder of letters by class: capitals in the fonts that come with matplotlib, turned, moved, in two colours.

    python vision/render_letters.py letters --count 4000        (seconds on one CPU core)

The folder has a subfolder for each letter; it is what the recipes of this folder take as --pictures. The same seed gives the same pictures.
"""

import random
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.files import whole_folder
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track

FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic", "STIXGeneralBol")
INKS = ((20, 20, 20), (170, 30, 30), (30, 70, 170), (30, 120, 50))
GROUNDS = ((255, 255, 255), (250, 240, 205), (220, 235, 250))


def draw_letter(letter: str, number: int, side: int, seed: int) -> Image.Image:
    """Return the picture of a letter, `side` x `side` pixels, drawn four times as large and reduced."""
    pick = random.Random(f"letter {letter} {number} {seed}")
    large, fonts = 4 * side, Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(fonts / f"{pick.choice(FONTS)}.ttf", round(large * pick.uniform(0.55, 0.75)))
    mask = Image.new("L", (large, large))
    middle = tuple(large * (0.5 + pick.uniform(-0.06, 0.06)) for _ in range(2))
    ImageDraw.Draw(mask).text(middle, letter, fill=255, font=font, anchor="mm")
    mask = mask.rotate(pick.uniform(-12, 12), Image.Resampling.BICUBIC).resize((side, side), Image.Resampling.LANCZOS)
    picture = Image.new("RGB", (side, side), pick.choice(GROUNDS))
    picture.paste(pick.choice(INKS), mask=mask)
    return picture


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("build/letters"), help="a folder that does not exist yet")
    parser.add_argument("--letters", default="ABEGHKMRSX", help="the classes")
    parser.add_argument("--count", type=int, default=4000, help="pictures in all")
    parser.add_argument("--size", type=int, default=48, help="pixels a side")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--smoke", action="store_true", help="24 pictures of three letters")
    args = parser.parse_args()
    refuse_several_processes()
    letters = sorted(set("ABC" if args.smoke else args.letters))
    count = 24 if args.smoke else args.count
    if args.out.exists():
        parser.error(f"{args.out} exists already: give a folder that does not")
    if len(letters) < 2 or not all("A" <= each <= "Z" for each in letters) or args.size < 16 or count < len(letters):
        parser.error("give two of the letters A to Z at least, 16 pixels a side at least, and a picture for each letter at least")
    with whole_folder(args.out) as inside:
        for letter in letters:
            (inside / letter).mkdir()
        for number in track(range(count), "drawing", disable=count < 100):
            letter = letters[number % len(letters)]
            draw_letter(letter, number, args.size, args.seed).save(inside / letter / f"{number:06}.png")
    print(f"{count} pictures of {len(letters)} letters in {args.out}")


if __name__ == "__main__":
    run_recipe(main)
