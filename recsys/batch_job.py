"""Recommend to every user of a Parquet file, in shards, so that a killed run is started again and goes on where it was.

    python recsys/batch_job.py users.parquet --out out --k 20
    python recsys/batch_job.py users/ --out out --model ./target --catalogue c.parquet --drafter ./small --unseen
    torchrun --nproc-per-node 8 recsys/batch_job.py users.parquet --out out        (or: accelerate launch)
    python recsys/batch_job.py users/ --out out --engine ray                       (beyond one machine)
    python recsys/batch_job.py users/ --out out --simulate 200000 --bad 0.01       (makes users/ first)

Input: Parquet with columns user_id and history (a list of items, oldest first). Output: user_id, rank, item and score in
out/part-00000.parquet and so on; rows that ask for nothing or for unknown items go to out/rejects.jsonl with the reason. `--simulate`
writes the simulated shop's customers, with a share of bad rows of every kind. docs/jobs.md and docs/recsys.md tell the files.
"""

import argparse
import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.jobs import Report, Stopped, run
from mmspec.jobs.recommendations_job import RecommendationJobSpec, make_recommendation_job
from mmspec.minis.shop import Shop
from mmspec.recsys import METHODS, Catalogue
from mmspec.utils.files import whole
from mmspec.utils.recipe_options import RecipeParser, run_recipe, typed_length

GROUP = 8192  # users made and written at a time
LISTS = pa.list_(pa.int64())
MARK = {"simulated": "by recsys/batch_job.py"}  # in the files, which may be written again
SCHEMA = pa.schema([("user_id", pa.string()), ("history", LISTS)]).with_metadata(MARK)
BAD = ((None, [1]), ("null", None), ("empty", []), ("unknown", [1, 10**9]), ("hole", [1, None]))  # rows that a column of lists can hold
ODD = {"words": [["first", "second"]], "text": ["1,2,3"]}  # and columns of another type, in files of their own


def simulated(file: Path) -> bool:
    """Whether `simulate` wrote a file."""
    try:
        return b"simulated" in (pq.read_metadata(file).metadata or {})
    except (OSError, pa.ArrowInvalid):
        return False


def simulate(folder: Path, users: int, bad: float) -> int:
    """Write a new folder of `users` rows, a share `bad` of them bad, as many of each kind; how many are bad. Memory: a row group.

    Raises:
        ValueError: for a folder that holds anything but users that were simulated before.
    """
    if folder.exists() and not (folder.is_dir() and all(map(simulated, folder.iterdir()))):
        raise ValueError(f"{folder} exists: --simulate writes users into a new folder, and would replace what is there")
    folder.mkdir(parents=True, exist_ok=True)
    each = round(users * bad / (len(BAD) + len(ODD))) if bad else 0
    with whole(folder / "users.parquet", binary=True) as file, pq.ParquetWriter(file, SCHEMA) as writer:
        rows = users - each * len(ODD)
        for first in range(0, rows, GROUP):
            ids, histories = zip(*_rows(first, min(first + GROUP, rows), rows, each * len(BAD)), strict=True)
            writer.write_table(pa.table({"user_id": pa.array(ids, pa.string()), "history": pa.array(histories, LISTS)}, SCHEMA))
    for name, column in ODD.items():
        (folder / f"z-{name}.parquet").unlink(missing_ok=True)
        if each:
            with whole(folder / f"z-{name}.parquet", binary=True) as file:
                pq.write_table(pa.table({"user_id": [name] * each, "history": column * each}).replace_schema_metadata(MARK), file)
    return each * (len(BAD) + len(ODD))


def _rows(first: int, end: int, rows: int, bad: int) -> Iterator[tuple]:
    """Customers `first` to `end` of all `rows`; `bad` of those are spoilt, evenly spread."""
    for number, history in enumerate(Shop.of().histories(range(first, end), seed=2), first):
        turn = number * bad // rows
        yield (f"u{number}", history) if turn == (number + 1) * bad // rows else BAD[turn % len(BAD)]


def tiny(folder: Path) -> Path:
    """A folder with a random target and a random drafter for the simulated shop."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    items = len(Shop.of())
    Catalogue.of_codes(range(items), torch.randint(0, 64, (items, 3)), 64, 2, before=(1,)).write(folder / "catalogue.parquet")
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 2 + 3 * 64,
    }
    for name in ("target", "drafter"):
        LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=128)).save_pretrained(folder / name)
    return folder


def peak() -> str:
    """The most memory this process held (a process of torchrun or a worker of ray has its own)."""
    return f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB"


def recommend(args: argparse.Namespace) -> Report | None:
    if args.model == "tiny":
        args.model = str(tiny(args.users.parent / "tiny"))
    if args.simulate:
        bad = simulate(args.users, args.simulate, args.bad)
        print(f"{args.users}: {args.simulate} simulated users, {bad} of them bad; {peak()}", flush=True)
    names = ("users", "out", "model", "catalogue", "drafter", "mode", "k", "width", "draft_length", "unseen", "only", "seed", "rows")
    names += ("batch_size", "shard_size", "device", "dtype", "user_column", "history_column")
    asked = RecommendationJobSpec(**{name: getattr(args, name) for name in names})
    return run(partial(make_recommendation_job, asked), engine=args.engine)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("users", type=Path, nargs="?", help="a Parquet file, or a folder of them")
    parser.add_argument("--out", type=Path, help="a new folder, or that of the same job, to go on with it")
    parser.add_argument("--simulate", type=int, least=0, default=0, help="first write so many simulated users into the folder USERS")
    parser.add_argument("--bad", type=float, most=1, default=0.0, help="share of the simulated rows that are bad, of every kind")
    parser.add_argument("--model", default="mini", help="mini, a folder or a hub name; tiny: random weights, to see memory and speed")
    parser.add_argument("--catalogue", help="default: the model's own")
    parser.add_argument("--drafter", help="none, model, another name in the mini, a folder, a hub name or a file of counts")
    parser.add_argument("--method", "--mode", dest="mode", choices=METHODS, help="default strict with a drafter, plain without")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--width", type=int, help="beams drafted a level, default 4 k")
    parser.add_argument("--draft-length", type=typed_length, default="auto")
    parser.add_argument("--unseen", action="store_true", help="leave out what a user's history holds")
    parser.add_argument("--only", help="a file with the items that may be recommended")
    parser.add_argument("--user-column", default="user_id")
    parser.add_argument("--history-column", default="history")
    parser.add_argument("--rows", type=int, default=64, help="users searched for at once")
    parser.add_argument("--batch-size", type=int, default=256, help="users read at once, sorted by length")
    parser.add_argument("--shard-size", type=int, default=4096, help="users a shard; what a killed run may lose")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--engine", default="local", choices=("local", "ray"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--smoke", action="store_true", help="a few simulated users, good and bad, and a tiny random target")
    args = parser.parse_args()
    try:
        if args.smoke:
            with TemporaryDirectory() as folder:
                args.users, args.out, args.model = Path(folder, "users"), Path(folder, "out"), str(tiny(Path(folder)))
                args.simulate, args.bad, args.k, args.shard_size = 70, 0.2, 3, 32
                report = recommend(args)
                assert report
                assert (report.records, report.rejects, report.measures["recommendations"]) == (70, 14, 3 * 56)
        elif args.users is None or args.out is None:
            parser.error("give a file or folder of users and --out FOLDER, or --smoke")
        else:
            report = recommend(args)
    except (ValueError, FileNotFoundError) as error:
        parser.error(" ".join(str(error).split()))
    except Stopped as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if report is not None:
        calls = report.measures["row_calls"] / max(1, report.measures["users"])
        print(f"{report}; {calls:.2f} target calls a user, {report.rate:.1f} users/s, {peak()}")


if __name__ == "__main__":
    run_recipe(main)
