"""Measure large catalogues: bytes an item, CPU seconds to build, write, read and map, and what leaving out seen items costs.

    python recsys/measure_catalogues.py --items 1000000 5000000 10000000
    python recsys/measure_catalogues.py --items 1000000 --unseen                (plain search beside it, batches of 64 users)

Seconds are CPU time of the process, and of a search its median with the largest and smallest of the repetitions. Memory of a mapped
catalogue is what a process that maps it holds of its own (RssAnon) before and after it looked up items and searched the trie.
"""

import json

import torch

from mmspec.bench.catalogues import catalogue_costs, search_costs
from mmspec.utils.places import RecipeParser


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--size", type=int, default=256, help="codes a level")
    parser.add_argument("--unseen", action="store_true", help="compare searches instead")
    parser.add_argument("--users", type=int, default=64, help="users a search")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--layers", type=int, default=5, help="of the model that searches, random weights of width 192")
    parser.add_argument("--smoke", action="store_true", help="3,000 items, both tables")
    args = parser.parse_args()
    if args.smoke:
        args.items, args.size, args.users, args.repetitions, args.layers = [3000], 16, 4, 1, 1
    torch.set_num_threads(1)
    for items in args.items:
        if not args.unseen:
            print(json.dumps(catalogue_costs(items, args.size)), flush=True)
        if args.unseen or args.smoke:
            print(json.dumps(search_costs(items, args.size, args.users, args.repetitions, args.layers)), flush=True)


if __name__ == "__main__":
    main()
