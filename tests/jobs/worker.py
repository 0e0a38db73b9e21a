"""A job of any kind without a model, run as a user would: `python worker.py INPUT OUT`. Outputs follow from index and record by hashing."""

import argparse
import hashlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mmspec.jobs import Job, JsonLines, Lines, NumberedFiles, ParquetRows, ParquetTable, Reject, Stopped, run


def draw(seed: int, text: str) -> str:
    """Stands for a generation: a function of the record's seed and of nothing else."""
    return hashlib.sha256(f"{seed} {text}".encode()).hexdigest()


def check(record: dict) -> dict:
    if not isinstance(record.get("prompt"), str):
        raise ValueError(f"unknown item {record.get('prompt')!r}: give a text")
    return record


def job(source, out, *, files=False, seed=0, delay=0.0, model="m", **sizes) -> Job:
    """`delay` is seconds a batch."""

    def work(batch):
        time.sleep(delay)
        for index, record in batch:
            text = draw(seed + index, record["prompt"])
            if text[0] == "0":
                yield Reject("came out empty")
            elif files:
                yield text.encode() * 40, {"prompt": record["prompt"]}
            else:
                yield record | {"text": text}

    sink = NumberedFiles(".bin") if files else JsonLines()
    lines = Lines(Path(source)) if isinstance(source, str | Path) else source
    return Job(source=lines, sink=sink, work=work, out=Path(out), model={"weights": model}, options={"seed": seed}, check=check, **sizes)


# --- for workers of Ray: they import this module, so it stays light --------------------------------------------------


def built(make, marks: Path, *args, **named):
    """Leaves a mark for every process that builds the job."""
    marks.mkdir(exist_ok=True)
    with (marks / str(os.getpid())).open("a") as file:
        file.write("built\n")
    return make(*args, **named)


def at(record, spoil, asked):
    """`asked`, where one record meets something that spoils it."""

    def work(batch):
        if any(index == record for index, _ in batch):
            spoil()
        return asked.work(batch)

    return replace(asked, work=work)


def die_once(flag: Path) -> None:
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise ValueError("the model does not take this: give another")


def full() -> None:
    raise OSError(28, "No space left on device")


def blunder() -> None:
    raise KeyError("a bug")


# --- tables -------------------------------------------------------------------------------------------------------------


def known_items(record: dict) -> dict:
    """As a recommender checks a user: a list with something in it, of items that there are."""
    history = record["history"]
    if not isinstance(history, list) or not history:
        raise ValueError("empty history" if history == [] else f"history is {type(history).__name__}, not a list of items")
    if unknown := [item for item in history if not isinstance(item, int) or not 0 <= item < 1000]:
        raise ValueError(f"unknown item {unknown[0]!r}")
    return record


def users(source, out, *, k=4, delay=0.0, seed=0, **sizes) -> Job:
    """A job over a table, as a recommender's: k rows a user, with scores."""
    rows = ParquetRows(Path(source), ("user_id", "history"))

    def work(batch):
        time.sleep(delay)
        for index, record in batch:
            drawn = [draw(seed + index, f"{record['history']} {rank}") for rank in range(k)]
            items, scores = [int(text[:8], 16) % 1000 for text in drawn], [-int(text[:4], 16) / 7 for text in drawn]
            yield {"user_id": [record["user_id"]] * k, "rank": list(range(1, k + 1)), "item": items, "score": scores}

    sink = ParquetTable({"user_id": rows.types["user_id"], "rank": "int32", "item": "int64", "score": "float"})
    model, options = {"weights": "m"}, {"seed": seed, "k": k}
    return Job(source=rows, sink=sink, work=work, out=Path(out), model=model, options=options, check=known_items, unit="users", **sizes)


def killed(prepare: Callable[[], None], asked) -> bool:
    """Run in a process of its own that `prepare` has arranged to be killed; whether it was."""
    child = os.fork()
    if child == 0:
        prepare()
        try:
            run(asked)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def die_at(moment: int) -> None:
    """Kill this process at a numbered moment: before and after every link and rename."""
    passed = 0

    def deadly(do):
        def done(*args, **named):
            nonlocal passed
            for step in (lambda: None, lambda: do(*args, **named)):
                step()
                passed += 1
                if passed == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        return done

    os.replace, os.link = deadly(os.replace), deadly(os.link)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--users", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="m")
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=3)
    parser.add_argument("--shard-size", type=int, default=8)
    parser.add_argument("--die-at", type=int, default=0)
    args = vars(parser.parse_args())
    os.fsync = lambda handle: None  # what a kill cannot undo
    die_at(args.pop("die_at"))
    if args.pop("users"):
        make, _ = users, (args.pop("files"), args.pop("model"))
    else:
        make = job
    try:
        report = run(make(**args))
    except (ValueError, Stopped) as error:
        raise SystemExit(str(error)) from None
    print(report)


if __name__ == "__main__":
    main()
