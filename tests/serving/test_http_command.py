"""The command `mmspec serve`: it starts, answers, and ends cleanly at a signal."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import openai
import pytest

from mmspec.cli import app
from mmspec.commands.services.drafters import drafters_by_kind
from mmspec.serving.http.loading import model_id
from mmspec.serving.http.options import ServerOptions
from mmspec.serving.http.server import address_of, bound_socket
from tests.commands import ROOT
from tests.serving.web import WAIT, until


def started(*words):
    """A server in a process of its own, and its address."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MMSPEC_API_KEYS": "key"}
    command = [sys.executable, "-m", "mmspec.cli", "serve", *words, "--port", "0", "--json", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate()[1])
    return process, json.loads(line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(number):
    process, told = started("--text", "mini", "--drafter", "lookup")
    try:
        assert (told["models"], told["keys"]) == ({"text": "mini-text"}, 1)
        client = openai.OpenAI(base_url=f"{told['url']}/v1", api_key="key", max_retries=0, timeout=WAIT)
        options = {"model": "mini-text", "prompt": "Once upon a time", "max_tokens": 100, "seed": 1, "temperature": 0.8}
        whole = client.completions.create(**options).choices[0].text
        events = iter(client.completions.create(**options, stream=True))
        text = next(events).choices[0].text
        process.send_signal(number)
        text += "".join(chunk.choices[0].text for chunk in events)
        assert text == whole
        out, err = process.communicate(timeout=WAIT)
        assert (process.returncode, out) == (0, "")
        assert err.splitlines() == [f"text mini-text at {told['url']}; Ctrl+C ends the server"]
    finally:
        process.kill()


def test_what_does_not_end_within_the_grace_is_cancelled():
    """Streams, and requests whose answer has not begun, end with an error; there is one line about all of them."""
    process, told = started("--text", "mini", "--grace", "0.5", "--max-tokens", "400", "--draft-length", "0")
    try:
        headers = {"Authorization": "Bearer key"}
        body = {"prompt": ["Once"] * 4, "max_tokens": 400, "temperature": 2.0}
        post = partial(httpx.post, f"{told['url']}/v1/completions", headers=headers, timeout=WAIT)
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(post, json=body | {"stream": True}) for _ in range(3)]
            whole = pool.submit(post, json=body)
            running = 'mmspec_running_requests{model="mini-text"} 8.0'
            until(lambda: running in httpx.get(f"{told['url']}/metrics", headers=headers, timeout=WAIT).text)
            process.send_signal(signal.SIGTERM)
            for stream in streams:
                last = json.loads(stream.result().text.strip().splitlines()[-1].removeprefix("data: "))
                assert last["error"] == {
                    "message": "the server is being stopped",
                    "type": "server_error",
                    "param": None,
                    "code": "stopping",
                }
            assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (503, "stopping")
        out, err = process.communicate(timeout=WAIT)
        assert (process.returncode, out) == (0, "")
        lines = [line.partition(" at ")[0] for line in err.splitlines()]
        assert lines == ["text mini-text", "4 requests did not end within 0.5 s and are cancelled"]
    finally:
        process.kill()


def refused(capsys, *words, code=2):
    """The line on stderr."""
    with pytest.raises(SystemExit) as end:
        app(["serve", *words])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (code, "")
    assert len(said.err.splitlines()) == 1
    return said.err


def test_wrong_command_lines(capsys, monkeypatch):
    assert "no model: give --text" in refused(capsys)
    assert "max_rows is 0" in refused(capsys, "--text", "mini", "--max-rows", "0")
    assert "port is 70000" in refused(capsys, "--text", "mini", "--port", "70000")
    assert "give KIND=NAME, such as text=lookup" in refused(capsys, "--text", "mini", "--speech", "mini", "--drafter", "lookup")
    assert "none is served" in refused(capsys, "--speech", "mini", "--drafter", "text=lookup")
    assert "--max-rows is not for recognisers" in refused(capsys, "--recognizer", "mini", "--max-rows", "2")
    assert "no recogniser ships" in refused(capsys, "--recognizer", "mini", "--port", "0")
    assert "unknown drafter 'lokup' (did you mean 'lookup'?)" in refused(capsys, "--text", "mini", "--drafter", "lokup", "--port", "0")
    assert "host is 'no.such.host.invalid'" in refused(capsys, "--text", "mini", "--host", "no.such.host.invalid")
    monkeypatch.setattr("mmspec.serving.http.loading.load_served", None)  # the port is looked at before
    with bound_socket(ServerOptions(port=0)) as taken:
        port = address_of(taken).rpartition(":")[2]
        assert f"127.0.0.1 port {port} cannot be used" in refused(capsys, "--text", "mini", "--port", port)
    monkeypatch.setenv("MMSPEC_API_KEYS", ",")
    assert "MMSPEC_API_KEYS is set but holds no key" in refused(capsys, "--text", "mini")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install mmspec[serve]" in refused(capsys, "--text", "mini", code=1)


def test_drafters_by_kind():
    assert drafters_by_kind(["lookup"], ["text"], "served") == {"text": "lookup"}
    assert drafters_by_kind(["text=lookup", "speech=vadusa"], ["text", "speech"], "served") == {"text": "lookup", "speech": "vadusa"}
    assert drafters_by_kind(["./a=b"], ["text"], "served") == {"text": "./a=b"}
    with pytest.raises(ValueError, match="given twice"):
        drafters_by_kind(["lookup", "text=suffix"], ["text"], "served")


def test_ids_of_models(tmp_path):
    assert model_id("speech", "mini") == "mini-speech"
    assert model_id("text", str(tmp_path)) == tmp_path.name
    assert model_id("recognizer", "openai/whisper-base") == "openai/whisper-base"
