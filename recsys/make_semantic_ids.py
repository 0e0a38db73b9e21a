"""Make a catalogue with semantic ids from item embeddings: residual k-means or an RQ-VAE, a few codes an item.

    python recsys/make_semantic_ids.py --embeddings items.parquet --out catalogue.parquet --method rqvae --size 256

Embeddings: a Parquet file with columns `item`, `embedding` (a list of numbers) and, if you like, `name`; or .npy / .safetensors
(its only tensor, or the one called `embeddings`) of shape [items, D], with item ids in `--items` (one a line), or numbered from 0.
Code c of level l becomes token OFFSET + l * SIZE + c. Without --embeddings, the simulated shop's are used.
"""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from mmspec.minis.shop import Shop
from mmspec.recsys import Catalogue
from mmspec.recsys.semantic_ids import collisions, make
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.weights import load_file


def read(path: Path | None, items: Path | None) -> tuple[Tensor, list, list[str] | None]:
    """Embeddings [items, D], item ids, names. SystemExit, in one line, for what cannot be used."""
    if path is None:
        shop = Shop.of()
        return torch.from_numpy(shop.embeddings), list(range(len(shop))), list(shop.names)
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        if missing := {"item", "embedding"} - set(table.column_names):
            raise SystemExit(f"{path} has no column {', '.join(sorted(missing))}: it needs item and embedding")
        names = table["name"].to_pylist() if "name" in table.column_names else None
        vectors = np.stack(table["embedding"].to_numpy(zero_copy_only=False)).astype(np.float32)
        return torch.from_numpy(vectors), table["item"].to_pylist(), names
    if path.suffix == ".npy":
        found = torch.from_numpy(np.load(path, mmap_mode="r").astype(np.float32))
    else:
        tensors = load_file(path)
        if len(tensors) > 1 and "embeddings" not in tensors:
            raise SystemExit(f"{path} holds {', '.join(sorted(tensors))}: call the one to use embeddings")
        found = tensors.get("embeddings", next(iter(tensors.values()))).float()
    lines = items.read_text(encoding="utf-8").splitlines() if items else range(len(found))
    ids = [int(line) if str(line).isdigit() else line for line in lines]
    if len(ids) != len(found):
        raise SystemExit(f"{items} names {len(ids)} items and {path} has {len(found)} rows: give one id a row")
    return found, ids, None


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--embeddings", type=Path, help=".parquet, .npy or .safetensors; default: the simulated shop")
    parser.add_argument("--items", type=Path, help="item ids, one a line, for .npy and .safetensors")
    parser.add_argument("--out", type=Path, default=Path("build/catalogue.parquet"))
    parser.add_argument("--method", choices=("kmeans", "rqvae"), default="kmeans")
    parser.add_argument("--levels", type=int, default=4, help="codes an item")
    parser.add_argument("--size", type=int, default=64, help="codes a level")
    parser.add_argument("--last", choices=("count", "nearest", "plain"), default="count", help="how the last code keeps items apart")
    parser.add_argument("--offset", type=int, least=0, default=2, help="the first token that is a code; 0 pads and 1 starts a history")
    parser.add_argument("--most", type=int, default=20, help="items of a history that a model is shown")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--smoke", action="store_true", help="a few items, eight codes a level")
    args = parser.parse_args()
    for path in (args.embeddings, args.items):
        if path is not None and not path.exists():
            parser.error(f"{path} does not exist")
    embeddings, items, names = read(args.embeddings, args.items)
    if args.smoke:
        embeddings, items, names, args.size = embeddings[:60], items[:60], names and names[:60], 8
    codes = make(embeddings, args.method, args.levels, args.size, args.last, args.seed)
    catalogue = Catalogue.of_codes(items, codes, args.size, args.offset, before=(1,), most=args.most, names=names and tuple(names))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    catalogue.write(args.out)
    told = asdict(collisions(codes))
    print(json.dumps({"catalogue": str(args.out), "vocabulary": args.offset + args.levels * args.size, **told}))


if __name__ == "__main__":
    run_recipe(main)
