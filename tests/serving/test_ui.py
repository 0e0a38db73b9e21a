"""The page of `mmspec ui` in a real browser: every tab runs, at the size of a desktop and of a phone, and asks nothing of other hosts.

Screenshots are left in pytest's folder of temporary files. Without a chromium on the machine these tests are skipped;
`test_ui_handlers.py` has those of the page's code.
"""

import base64
import io
import json
import os
import re
import shutil
import signal
import urllib.parse

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.commands import ROOT
from tests.forked import Started
from tests.serving.web import WAIT, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
COLOURS = {"desktop": "light", "phone": "dark"}
TABS = ("text", "image", "speech", "recommender")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The command in a process of its own: (address, process)."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "command.py").write_text("from mmspec.cli import main\n\nmain()\n")
    command = ("ui", "--port", "0", "--json", "--device", "cpu")
    started = Started(folder / "command.py", *command, cwd=ROOT, folder=folder, env={"OMP_NUM_THREADS": "1"})
    out, process = folder / "stdout", started.process
    until(lambda: (out.exists() and out.read_text().endswith("\n")) or not process.is_alive())
    assert process.is_alive(), (folder / "stderr").read_text()
    told = json.loads(out.read_text())
    assert list(told["models"]) == list(TABS)
    yield told["url"], started
    if process.is_alive():
        process.kill()
        process.join()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Visit:
    """An open page; what it asks for, and what goes wrong in it, is recorded."""

    def __init__(self, browser, url, size="desktop"):
        self.page = browser.new_page()
        self.show(size)
        self.hosts, self.errors = set(), []
        self.page.set_default_timeout(WAIT * 1000)
        self.page.on("request", lambda request: self.hosts.add(urllib.parse.urlsplit(request.url).hostname))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.goto(url)
        self.page.wait_for_selector("#mm-run-text")

    def show(self, size):
        """Make the page as large as a desktop, in light colours, or a phone, in dark ones."""
        width, height = SIZES[size]
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme=COLOURS[size])

    def open(self, kind):
        self.page.locator(f"#mm-{kind}-button").click()
        self.page.locator(f"#mm-run-{kind}").wait_for()

    def field(self, kind, label):
        return self.page.locator(f"#mm-{kind}").get_by_label(label, exact=True)

    def choose(self, kind, label, option):
        self.field(kind, label).click()
        self.page.get_by_role("option", name=option, exact=True).click()

    def run(self, kind):
        """Click Run and return the panes at the end."""
        self.page.click(f"#mm-run-{kind}")
        panes = self.page.locator(f"#mm-panes-{kind}")
        panes.locator(".mm-equal").wait_for()
        return panes

    def status(self, kind):
        return self.page.locator(f"#mm-{kind} .mm-status")


@pytest.fixture(scope="module")
def visit(server, browser):
    found = Visit(browser, server[0])
    yield found
    found.page.close()


def figures(pane):
    return {each.get_attribute("data-figure"): each.inner_text() for each in pane.locator("[data-figure]").all()}


def colour(element):
    return element.evaluate("element => getComputedStyle(element).backgroundColor")


def decoded(source):
    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).convert("RGB")


@pytest.mark.parametrize("kind", TABS)
def test_a_tab_runs(visit, kind, tmp_path_factory):
    visit.open(kind)
    panes = visit.run(kind)
    plain, fast = (panes.locator(f"[data-name={name}]") for name in ("plain", "speculative"))
    assert panes.locator(".mm-equal").get_attribute("data-equal") == "yes"
    assert [pane.get_attribute("data-state") for pane in (plain, fast)] == ["done", "done"]
    own, drafted = figures(plain), figures(fast)
    assert int(drafted["target forwards"]) < int(own["target forwards"])
    assert (own["exactness"], drafted["exactness"], drafted["drift"]) == ("token-exact", "token-exact", "0")
    assert float(drafted["seconds"]) > 0
    folder = tmp_path_factory.getbasetemp() / "screenshots"
    folder.mkdir(exist_ok=True)
    for size in ("phone", "desktop"):  # what was drawn, in the other size and colours
        visit.show(size)
        CONTENT[kind](visit.page, plain, fast)
        visit.page.screenshot(path=folder / f"{kind}-{size}.png", full_page=True)
        wide, there = visit.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= there
        beside = plain.bounding_box()["y"] == fast.bounding_box()["y"]
        assert beside == (size == "desktop")
    assert visit.errors == []
    assert visit.hosts <= {"127.0.0.1", None, ""}


def _text(page, plain, fast):
    texts = [pane.locator(".mm-text").inner_text() for pane in (plain, fast)]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 200
    assert plain.locator(".mm-h").count() == 0
    assert fast.locator(".mm-h").count() > 5
    shades = {colour(fast.locator(name).first) for name in (".mm-h", ".mm-o")}
    assert len(shades) == 2
    assert "rgba(0, 0, 0, 0)" not in shades


def _image(page, plain, fast):
    pictures = [decoded(pane.locator(".mm-image").get_attribute("src")) for pane in (plain, fast)]
    colours = [np.asarray(each).astype(int) for each in pictures]
    assert (colours[0] == colours[1]).all()
    red = (colours[0][..., 0] - colours[0][..., 1] > 100).mean()
    assert 0.01 < red < 0.5  # "a large red star top right"
    assert fast.locator(".mm-image").evaluate("element => element.complete && element.naturalWidth") == 64
    maps = [np.asarray(decoded(pane.locator(".mm-map").get_attribute("src"))).reshape(-1, 3) for pane in (plain, fast)]
    assert [len(np.unique(each, axis=0)) for each in maps] == [1, 2]


def _speech(page, plain, fast):
    for pane in (plain, fast):
        pane.locator("audio").evaluate(
            "element => new Promise(done => { if (element.readyState) done(); else element.onloadedmetadata = done })"
        )
        assert 0.5 < pane.locator("audio").evaluate("element => element.duration") < 5
    assert plain.locator("audio").get_attribute("src") == fast.locator("audio").get_attribute("src")
    assert fast.locator("rect.mm-drafted").count() > 10
    assert plain.locator("rect.mm-drafted").count() == 0


def _recommender(page, plain, fast):
    lists = [[row.get_attribute("data-item") for row in pane.locator("tbody tr").all()] for pane in (plain, fast)]
    assert lists[0] == lists[1]
    assert len(set(lists[0])) == 10
    assert re.search(r"[A-Z][a-z]+ \w+ .+, \w+", plain.locator("tbody tr td").nth(1).inner_text())


CONTENT = {"text": _text, "image": _image, "speech": _speech, "recommender": _recommender}


def test_it_streams_and_stop_ends_a_run(server, browser):
    visit = Visit(browser, server[0])
    visit.choose("text", "Slow motion", "10 \N{MULTIPLICATION SIGN}")
    visit.page.click("#mm-run-text")
    plain = visit.page.locator("#mm-panes-text [data-name=plain]")
    seen = set()
    while len(seen) < 3:  # the text grows while it is generated
        plain.locator(".mm-o").first.wait_for()
        seen.add(plain.locator(".mm-o").count())
        assert plain.get_attribute("data-state") == "running"
    visit.page.click("#mm-stop-text")
    visit.status("text").get_by_text("stopped").wait_for()
    assert plain.get_attribute("data-state") == "stopped"
    assert visit.page.locator("#mm-panes-text .mm-equal").count() == 0
    visit.page.close()


def test_a_closed_page_leaves_the_model_to_others(server, browser):
    first, second = (Visit(browser, server[0]) for _ in range(2))
    first.choose("text", "Slow motion", "10 \N{MULTIPLICATION SIGN}")
    first.page.click("#mm-run-text")
    first.page.locator("#mm-panes-text .mm-o").nth(1).wait_for()
    second.page.click("#mm-run-text")
    second.status("text").get_by_text("waiting").wait_for()
    first.page.close()
    second.page.locator("#mm-panes-text .mm-equal").wait_for()
    second.page.close()


def test_an_example_fills_the_form_and_bad_input_is_one_line(server, browser):
    visit = Visit(browser, server[0], "phone")
    visit.open("speech")
    visit.page.locator("#mm-speech").get_by_text("nine zero two one, theo").click()
    visit.page.wait_for_function("document.querySelector('#mm-speech textarea').value === 'nine zero two one'")
    assert visit.field("speech", "Voice").input_value() == "theo"
    visit.open("recommender")
    visit.page.locator("#mm-recommender textarea").fill("12, 99999")
    visit.page.click("#mm-run-recommender")
    message = visit.status("recommender").get_by_role("alert")
    message.wait_for()
    assert message.inner_text() == "item 99999 is not in the catalogue of 3072 items"
    assert visit.page.locator("#mm-panes-recommender .mm-pane").count() == 0
    visit.page.locator("#mm-recommender textarea").fill("12, 13")
    panes = visit.run("recommender")
    assert panes.locator(".mm-equal").get_attribute("data-equal") == "yes"
    assert visit.errors == []
    visit.page.close()


def test_it_offers_no_interface_to_programs_and_takes_no_files(server):
    url = f"{server[0]}/gradio_api"
    assert httpx.get(f"{url}/info").json() == {"named_endpoints": {}, "unnamed_endpoints": {}}
    assert httpx.post(f"{url}/upload", files={"files": ("a.txt", b"some bytes")}).status_code == 413


def test_a_signal_ends_it_while_a_page_is_open(server, browser):
    url, started = server
    visit = Visit(browser, url)
    os.kill(started.process.pid, signal.SIGINT)
    done = started.finish(WAIT)
    visit.page.close()
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert len(done.stderr.splitlines()) == 1
    assert f"at {url}; Ctrl+C ends the page" in done.stderr
