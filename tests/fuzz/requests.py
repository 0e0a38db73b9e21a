"""Malformed requests to a server, every one of which must be answered clearly: `python -m tests.fuzz.requests --count 1000 --seed 7`."""

import argparse
import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.harness import LONGEST, Report

SECONDS = 30.0
"""Until an answer: longer is a hang. Loaded machines are slow; a request that is refused needs milliseconds."""
COUNT, SEED = 150, 0
DELIBERATE = {"busy", "too_many_connections", "stopping", "timeout"}  # codes of 5xx that are said on purpose
TEXTS, CHATS = "/v1/completions", "/v1/chat/completions"
PICTURES, SPEECH = "/v1/images/generations", "/v1/audio/speech"
ITEMS, SOUND = "/v1/recommendations", "/v1/audio/transcriptions"
VALID: dict[str, dict[str, Any]] = {
    TEXTS: {
        "prompt": "Once",
        "max_tokens": 1,
        "seed": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "n": 1,
        "stop": ["x"],
        "logprobs": 1,
    },
    CHATS: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "stream": False, "logprobs": True, "top_logprobs": 1},
    PICTURES: {"prompt": "a large red star top left", "n": 1, "size": "auto", "output_format": "png", "guidance": 1.5},
    SPEECH: {"input": "one", "voice": "jackson", "response_format": "wav", "max_seconds": 0.1, "speed": 1},
    ITEMS: {"history": [1, 2], "k": 2, "unseen": True, "allow": None, "deny": []},
}
WRONG: tuple[Any, ...] = (
    *(
        None,
        "",
        " ",
        [],
        {},
        [[]],
        [{}],
        {"a": 1},
        [None],
        True,
        False,
        "true",
        0,
        -1,
        1.5,
        10**30,
        -(10**30),
        1e308,
        "💥",
        "\x00",
        "a" * 5000,
    ),
    *(
        float("nan"),
        float("inf"),
        ["a", 1],
        [["a"]],
        [[1], []],
        [10**12],
        {"type": "text"},
        [{"type": "file"}],
        [{"role": "user"}],
        "../../x",
    ),
    *([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]}], ["a"] * 400, [1] * 4000),
)
_RAW = re.compile(
    r"\b[A-Z][A-Za-z]*(Error|Exception)\b|validation error|Input should|\bvalid (string|integer|dictionary|number|list)|pydantic"
    r"|0x[0-9a-f]{6}|Traceback|site-packages|\.py\b|NoneType"
)


@dataclass(frozen=True)
class Sent:
    """A request as bytes.

    Args:
        name: what is wrong with it.
        data: what is sent.
        wrong: it must be refused.
        silent: it is no whole request, so that the connection may be closed without an answer.
    """

    name: str
    data: bytes
    wrong: bool = True
    silent: bool = False


def http(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
    """A request with its length."""
    given = {"Host": "a", "Connection": "close", "Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value != "none")
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def table() -> Iterator[Sent]:
    """Requests that are wrong by hand."""
    fine = json.dumps(VALID[TEXTS]).encode()
    yield Sent("no HTTP", b"\x16\x03\x01\x02\x00 tls hello\r\n\r\n", silent=True)
    yield Sent("half of a head", b"POST /v1/completions HTTP/1.1\r\nHost:", silent=True)
    yield Sent("no host", b"GET /health HTTP/1.1\r\n\r\n", silent=True)
    yield Sent("a head of 80 kB", http(TEXTS, fine, X="y" * 80_000), silent=True)
    yield Sent("a length that is no number", http(TEXTS, fine, Content_Length="many"), silent=True)
    yield Sent("a negative length", http(TEXTS, fine, Content_Length="-1"), silent=True)
    yield Sent("two lengths", http(TEXTS, fine, content_length="3"), silent=True)
    yield Sent("a length of 10**30", http(TEXTS, b"", Content_Length="1" + "0" * 30), silent=True)
    yield Sent("a body that ends early", http(TEXTS, fine, Content_Length=str(len(fine) + 9)), silent=True)
    yield Sent("chunks that are none", http(TEXTS, b"zz\r\n", Content_Length="none", Transfer_Encoding="chunked"), silent=True)
    yield Sent("a chunk of 2**70", http(TEXTS, b"4" + b"0" * 17 + b"\r\n", Content_Length="none", Transfer_Encoding="chunked"), silent=True)
    yield Sent("gzip", http(TEXTS, b"\x1f\x8b\x08\x00", Content_Encoding="gzip"))
    yield Sent("no content type", http(TEXTS, fine, Content_Type="none"))
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "💥".encode().decode("latin-1")):
        yield Sent(f"content type {kind!r}", http(TEXTS, fine, Content_Type=kind))
    for body in (
        b"",
        b" ",
        b"{",
        b"}",
        b"[]",
        b"null",
        b"1",
        b'"a"',
        b"{}",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"prompt": "\xc3"}',
        b"{'prompt': 1}",
    ):
        yield Sent(f"body {body!r}", http(TEXTS, body))
    for body in (
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"prompt": "\\ud800"}',
        b'{"\\udfff": 1}',
    ):
        yield Sent(f"body {body[:20]!r}...", http(TEXTS, body))
    yield Sent("a number of 5,000 digits", http(TEXTS, b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}"))
    yield Sent("30,000 objects", http(TEXTS, b'{"prompt": [' + b"{}," * 30_000 + b"{}]}"))
    yield Sent("300,000 lists", http(TEXTS, b'{"prompt": [' + b"[]," * 300_000 + b"[]]}"))
    yield Sent("10,000 unknown fields", http(TEXTS, json.dumps(dict.fromkeys(map(str, range(10_000)), 1)).encode()))
    yield Sent("a text of 900 kB", http(TEXTS, json.dumps({"prompt": "word " * 180_000}).encode()))
    yield Sent("a chat of 20,000 turns", http(CHATS, json.dumps({"messages": [{"role": "user", "content": "a"}] * 20_000}).encode()))
    for role in ("tool", "function", "", "USER"):
        yield Sent(f"role {role!r}", http(CHATS, json.dumps({"messages": [{"role": role, "content": "a"}]}).encode()))
    yield Sent(
        "a template in a text", http(CHATS, json.dumps({"messages": [{"role": "user", "content": "{{ 1/0 }}"}]}).encode()), wrong=False
    )
    for url in ("http://127.0.0.1/a.png", "file:///etc/passwd", "data:image/png;base64,@@", "data:,x", ""):
        content = [{"type": "image_url", "image_url": {"url": url}}]
        yield Sent(f"picture {url!r}", http(CHATS, json.dumps({"messages": [{"role": "user", "content": content}]}).encode()))
    for method, path in (
        ("GET", TEXTS),
        ("PUT", TEXTS),
        ("DELETE", "/health"),
        ("POST", "/health"),
        ("POST", "/nowhere"),
        ("GET", "/%00"),
        ("TRACE", "/"),
    ):
        yield Sent(f"{method} {path}", http(path, fine, method))
    for path in ("/v1/models/%2e%2e%2f", "/v1/models/" + "a" * 5000, "/../../etc/passwd", "/v1//completions", "/v1/completions/"):
        yield Sent(f"GET {path[:30]}", http(path, method="GET"))
    for kind, body in (("multipart/form-data", b"x"), ("multipart/form-data; boundary=b", b"--b\r\n\r\n"), ("application/json", b"{}")):
        yield Sent(f"{SOUND} as {kind}", http(SOUND, body, Content_Type=kind))
    for name, more in (("file", b""), ("file", b"RIFF" + b"\xff" * 40), ("other", b"a")):
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="a.wav"\r\n\r\n'.encode()
        yield Sent(
            f"a recording {name} {more[:4]!r}", http(SOUND, head + more + b"\r\n--b--\r\n", Content_Type="multipart/form-data; boundary=b")
        )
    many = b"".join(b'--b\r\nContent-Disposition: form-data; name="f%d"\r\n\r\nx\r\n' % number for number in range(200)) + b"--b--\r\n"
    yield Sent("200 fields of a form", http(SOUND, many, Content_Type="multipart/form-data; boundary=b"))


def drawn(random: Random) -> Sent:
    """A valid body with one thing changed."""
    path = random.choice(list(VALID))
    body = json.loads(json.dumps(VALID[path]))
    kind = random.choice(("value", "value", "value", "value", "unknown", "left out", "cut", "noise", "nested"))
    field = random.choice(list(body))
    value = random.choice(WRONG)
    if kind == "value":
        body[field] = value
    elif kind == "unknown":
        body[random.choice(("", "__class__", "Prompt", "💥", "prompt ", "model_config", "a" * 3000))] = value
    elif kind == "left out":
        del body[field]
    elif kind == "nested":
        body[field] = [body[field], value]
    data = json.dumps(body).encode()
    if kind == "cut":
        data = data[: random.randrange(len(data))]
    elif kind == "noise":
        place = random.randrange(len(data))
        data = data[:place] + random.randbytes(3) + data[place + 1 :]
    return Sent(f"{path} {kind} {field}={value!r:.40}", http(path, data), wrong=kind == "cut" or (kind == "unknown" and value is not None))


def cases(count: int, seed: int) -> Iterator[Sent]:
    """The table, and as many drawn ones as are left."""
    made = list(table())
    random = Random(seed)
    yield from made
    yield from (drawn(random) for _ in range(count - len(made)))


def send(address: tuple[str, int], sent: Sent) -> tuple[str, str]:
    """(outcome, detail) of a request; the outcomes are those of the harness."""
    answer = b""
    try:
        with socket.create_connection(address, timeout=SECONDS) as line:
            try:
                line.sendall(sent.data)
                if sent.silent:
                    line.shutdown(socket.SHUT_WR)
                while part := line.recv(65536):
                    answer += part
            except (BrokenPipeError, ConnectionResetError):  # refused before all of it was sent: the answer may be lost
                pass
    except TimeoutError:
        return "hang", f"no end within {SECONDS:g} s, after {answer[:100]!r}"
    if not answer:
        return ("clear", "") if sent.silent or len(sent.data) > 2**16 else ("silent", "closed without an answer")
    return _outcome(sent, answer)


def _outcome(sent: Sent, answer: bytes) -> tuple[str, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    if b"application/json" not in head.lower():
        plain = body.decode("utf-8", "replace")
        refused = sent.silent and status == 400  # no HTTP: h11 says so in plain text
        return ("clear", "") if refused or (status < 300 and not sent.wrong) else ("traceback", f"{status} {plain[:200]}")
    try:
        error = json.loads(body).get("error")
    except ValueError:
        return "traceback", f"{status}, and no JSON: {body[:200]!r}"
    if status < 300:
        return ("silent", f"{status} {body[:100]!r}") if sent.wrong and not sent.silent else ("clear", "")
    if not error or set(error) != {"message", "type", "param", "code"}:
        return "traceback", f"{status} {body[:200]!r}"
    message = error["message"]
    if status >= 500 and error["code"] not in DELIBERATE:
        return "traceback", f"{status} {message}"
    if "\n" in message or not 10 <= len(message) <= LONGEST or _RAW.search(message.split(": give")[0].replace("Content-Type", "")):
        return "internal", f"{status} {message}"
    return "clear", ""


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the server's loggers write with a traceback while the block runs."""
    told: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: told.append(record.getMessage()) if record.exc_info else None  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("mmspec.serving", "uvicorn.error", "asyncio")]
    with ExitStack() as stack:
        for logger in loggers:
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        yield told


def run(site: Any, count: int = COUNT, seed: int = SEED) -> Report:
    """Send the requests to a server of this process, one after the other."""
    address = ("127.0.0.1", int(site.url.rpartition(":")[2]))
    report = Report()
    with logged() as told:
        for sent in cases(count, seed):
            before = len(told)
            outcome, detail = send(address, sent)
            if len(told) > before:
                outcome, detail = "traceback", "in the log: " + told[-1]
            report.add(outcome, sent.name, detail)
    return report


def main() -> int:
    """Run it on a server of all minis."""
    from tests.fuzz.test_requests import all_minis

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    with all_minis() as site:
        report = run(site, args.count, args.seed)
    print(report.table("requests"))
    return 0 if report.clear else 1


if __name__ == "__main__":
    raise SystemExit(main())
