"""A server under every attack and under load at once: `python -m tests.serving.attack --seconds 60`.

The server is a process of its own, on the loopback; so are the attackers, the clients of the load, and the one that asks for `/health`.
Printed are the longest wait for `/health`, the server's memory, how long requests of one token took, and how many answers were not those of
plain decoding. It fails where an answer differs, a client of the load gets none, `/health` is refused, or a burst is not held as promised.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from threading import Event as ThreadEvent
from threading import Thread
from typing import Any

import httpx
import psutil

ROWS, QUEUE, WAIT = 8, 16, 120.0
PROMPTS = ("Once upon a time", "Question: Ann has 3 apples", "The old king", "One day, a girl named Lily")
TOKENS, SEEDS = 12, 5
HOST = "127.0.0.1"


def started(*words: str) -> tuple[subprocess.Popen, int]:
    """A server, and its port."""
    command = [sys.executable, "-m", "mmspec.cli", "serve", "--text", "mini", "--recommender", "mini", "--port", "0", "--json", *words]
    process = subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])


# --- attacks: each runs until `stop` is set ---------------------------------------------------------------------------


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=WAIT)


def head_of(length: int, path: str = "/v1/completions") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()


def posts(*bodies: bytes) -> Any:
    """An attack that sends bodies and waits for the answers."""

    def attack(port: int, stop: Any) -> None:
        while not stop.is_set():
            for body in bodies:
                with suppress(OSError), connect(port) as line:
                    line.sendall(head_of(len(body)) + body)
                    line.recv(4096)

    return attack


def leaves(body: bytes) -> Any:
    """An attack that sends a body and leaves."""

    def attack(port: int, stop: Any) -> None:
        while not stop.is_set():
            with suppress(OSError), connect(port) as line:
                line.sendall(head_of(len(body)) + body)
            time.sleep(0.05)

    return attack


def idle(port: int, stop: Any) -> None:
    """1,100 connections at a time, half of them with half of a head."""
    while not stop.is_set():
        with ExitStack() as stack:
            for number in range(1100):
                with suppress(OSError):
                    line = stack.enter_context(connect(port))
                    line.sendall(b"GET /health HT" if number % 2 else b"")
            stop.wait(5)


def slow(port: int, stop: Any) -> None:
    """Bodies that arrive a byte at a time."""
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(port)) for _ in range(40)]
        for line in lines:
            line.sendall(head_of(1000))
        while not stop.is_set():
            for line in lines:
                with suppress(OSError):
                    line.sendall(b" ")
            stop.wait(0.5)


def unread(port: int, stop: Any) -> None:
    """Answers that nobody reads."""
    while not stop.is_set():
        with suppress(OSError), connect(port) as line:
            line.settimeout(1)
            line.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 500)
            stop.wait(1)


def long_ones(port: int, stop: Any) -> None:
    """16 requests of as many tokens as there may be, again and again."""
    body = json.dumps({"prompt": "Once", "max_tokens": 400, "temperature": 1.5}).encode()
    with ThreadPoolExecutor(16) as pool:
        for _ in range(16):
            pool.submit(posts(body), port, stop)


_NONSENSE = [b'{"prompt": [' + b"{}," * count + b"{}]}" for count in (320_000, 700_000, 40_000)]
_LONG = [json.dumps({"prompt": "word " * (count // 5)}).encode() for count in (8_000_000, 1_000_000, 60_000)]
_TURNS = json.dumps({"messages": [{"role": "user", "content": "a"}] * 30_000}).encode()
_ITEMS = json.dumps({"history": [1] * 9_000, "allow": list(range(9_000))}).encode()
ATTACKS = {
    "lists of nonsense": posts(*_NONSENSE),
    "over-long prompts": posts(*_LONG),
    "over-long prompts, and leave": leaves(_LONG[1]),
    "over-long prompts of 60 kB, and leave": leaves(_LONG[2]),
    "chats of 30,000 turns": posts(_TURNS),
    "lists of items": posts(_ITEMS),
    "idle connections": idle,
    "slow bodies": slow,
    "answers not read": unread,
    "long requests": long_ones,
}


def attackers(port: int, stop: Any, names: list[str]) -> None:
    """Attacks at once."""
    threads = [Thread(target=ATTACKS[name], args=(port, stop)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- load -------------------------------------------------------------------------------------------------------------


def expected() -> dict[tuple[str, int, int], str]:
    """The answers of the load by plain decoding: (prompt, seed, tokens) -> text."""
    import mmspec

    mini, found = mmspec.load("text"), {}
    for tokens in (1, TOKENS):
        for prompt in PROMPTS:
            for seed in range(SEEDS):
                ids = {"input_ids": mini.processor([prompt], return_tensors="pt")["input_ids"]}
                out = mmspec.text.generate(mini.target, ids, seed=seed, temperature=0.8, max_new_tokens=tokens)
                found[prompt, seed, tokens] = mini.processor.decode(out.tokens[0, : out.lengths[0]], skip_special_tokens=True)
    return found


def load(port: int, stop: Any, answers: dict[tuple[str, int, int], str], told: Any) -> None:
    """Clients that send the same requests as for `expected`, again where the server is full; what they met is put in `told`."""
    counts, waits = Counter(), {1: [], TOKENS: []}

    def client(number: int) -> None:
        cases = list(answers)
        while not stop.is_set():
            number += 7
            prompt, seed, tokens = case = cases[number % len(cases)]
            body = {"prompt": prompt, "seed": seed, "temperature": 0.8, "max_tokens": tokens}
            began = time.monotonic()
            while True:
                try:
                    out = httpx.post(f"http://{HOST}:{port}/v1/completions", json=body, timeout=WAIT)
                except httpx.TransportError as error:
                    counts[f"connection: {type(error).__name__}"] += 1
                    out = None
                if out is not None and out.status_code == 200:
                    counts["equal" if out.json()["choices"][0]["text"] == answers[case] else "different"] += 1
                    waits[tokens].append(time.monotonic() - began)
                    break
                if out is not None:
                    counts[f"sent again after {out.status_code}"] += 1
                if time.monotonic() - began > WAIT:
                    counts["unanswered"] += 1
                    break
                time.sleep(0.2)

    threads = [Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put((dict(counts), waits))


def burst(port: int) -> Counter:
    """The statuses of three times as many requests as rows and queue hold, all at once."""
    body = {"prompt": "Once", "max_tokens": 200, "temperature": 1.5, "seed": 1}
    count = 3 * (ROWS + QUEUE)
    with ThreadPoolExecutor(count) as pool:
        found = pool.map(lambda _: httpx.post(f"http://{HOST}:{port}/v1/completions", json=body, timeout=WAIT).status_code, range(count))
        return Counter(found)


def watched(port: int, process: subprocess.Popen, seconds: float) -> dict[str, Any]:
    """Ask for /health and /metrics until the time is over, on a new connection each time."""
    server, waits, failures, peak = psutil.Process(process.pid), {"/health": [], "/metrics": []}, Counter(), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path, found in waits.items():
            began = time.monotonic()
            try:
                status = httpx.get(f"http://{HOST}:{port}{path}", timeout=WAIT).status_code
            except httpx.TransportError as error:
                status = type(error).__name__
            found.append(time.monotonic() - began)
            failures[status] += status != 200
        peak = max(peak, server.memory_info().rss)
        time.sleep(0.05)
    return {"waits": waits, "failures": +failures, "peak": peak}


def main() -> int:
    """Run it, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the attacks; 60 by default")
    parser.add_argument("--only", default="", help="of the attacks those whose names hold this")
    args = parser.parse_args()
    names = [name for name in ATTACKS if args.only in name]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    answers, context = expected(), get_context("spawn")
    process, port = started("--max-rows", str(ROWS), "--max-queue", str(QUEUE))
    stop, told, quiet = context.Event(), context.Queue(), ThreadEvent()
    try:
        before = psutil.Process(process.pid).memory_info().rss
        held = burst(port)
        calm = watched(port, process, min(5.0, args.seconds))
        others = [
            context.Process(target=attackers, args=(port, stop, names)),
            context.Process(target=load, args=(port, stop, answers, told)),
        ]
        for each in others:
            each.start()
        found = watched(port, process, args.seconds)
        stop.set()
        counts, waits = told.get(timeout=2 * WAIT)
        for each in others:
            each.join(WAIT)
        quiet.wait(2)
        after = watched(port, process, 1.0)
        process.send_signal(signal.SIGTERM)
        code = process.wait(WAIT)
    finally:
        process.kill()
    mib = 2**20
    print(f"{len(names)} attacks and 4 clients for {args.seconds:g} s: {', '.join(names)}")
    for name, part in (("before", calm), ("during", found), ("after", after)):
        longest = ", ".join(f"{path} {max(each):.3f} s of {len(each)}" for path, each in part["waits"].items())
        print(f"  {name}: longest wait {longest}; not answered with 200: {dict(part['failures']) or 'none'}")
    print(
        f"  memory of the server: {before / mib:.0f} MiB at the start, {found['peak'] / mib:.0f} at most, {after['peak'] / mib:.0f} after"
    )
    print(f"  load: {counts}")
    for tokens, each in waits.items():
        middle = sorted(each)[len(each) // 2] if each else 0.0
        print(f"  {len(each)} answers of {tokens} tokens: longest wait {max(each, default=0.0):.2f} s, median {middle:.2f} s")
    print(f"  a burst of {held.total()} on {ROWS} rows and a queue of {QUEUE}: {dict(held)}; exit code of the server: {code}")
    fine = {"equal"} | {name for name in counts if name.startswith(("sent again after 429", "sent again after 503"))}
    good = not (set(counts) - fine) and counts.get("equal", 0) > 0 and not any(part["failures"] for part in (calm, found, after))
    good = good and held == {200: ROWS + QUEUE, 429: 2 * (ROWS + QUEUE)} and code == 0
    print("every answer is that of plain decoding, and all of the above is as it should be" if good else "NOT as it should be")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
