"""Write Amazon 2014 Beauty as the two tables that `mmspec recommend prepare` reads.

    python recsys/make_beauty_tables.py build/beauty
    mmspec recommend prepare build/beauty/interactions.parquet build/beauty/items.parquet build/beauty/shop --from codes+events

It is read from `amazon-beauty` below MMSPEC_DATA (default ../shared/data): 22,363 users, 198,502 events, 12,101 items with ready codes.
"""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mmspec.utils.places import RecipeParser


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("out", type=Path, nargs="?", help="folder for interactions.parquet and items.parquet")
    parser.add_argument("--ids", choices=("rqvae", "rqkmeans"), default="rqvae", help="the ready codes")
    parser.add_argument("--smoke", action="store_true", help="a table of three users, written to build/beauty-smoke; reads no data")
    args = parser.parse_args()
    if args.smoke:
        histories, codes = {"1": [1, 2, 3], "2": [2, 3, 1], "3": [3, 2, 1]}, {"1": [0, 0], "2": [0, 1], "3": [1, 0]}
        args.out = args.out or Path("build/beauty-smoke")
    else:
        folder = Path(os.environ.get("MMSPEC_DATA", "../shared/data")) / "amazon-beauty"
        histories, codes = read(folder / "inter.json"), read(folder / f"index_{args.ids}.json")
    if args.out is None:
        parser.error("give a folder to write to")
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [(int(user), int(item), time) for user, items in histories.items() for time, item in enumerate(items)]
    events = pa.table(dict(zip(("user", "item", "time"), zip(*rows, strict=True), strict=True)))
    pq.write_table(events, args.out / "interactions.parquet")
    pq.write_table(pa.table({"item": list(map(int, codes)), "codes": list(codes.values())}), args.out / "items.parquet")
    print(f"{len(rows):,} events of {len(histories):,} users, {len(codes):,} items in {args.out}")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
