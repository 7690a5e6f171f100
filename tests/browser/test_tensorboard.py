"""TensorBoard of a live run and its report, as a person sees them: headless Chromium, spoken to over DevTools."""

import asyncio
import base64
import io
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from PIL import Image

LEARNERS = ("bottom", "middle", "top")
CHAIN = Path(__file__).parents[2] / "topology" / "chains" / "digits.yaml"
SECONDS = 60.0
"""Until what does not come counts as never coming."""
APART = 10.0
"""Seconds between the two pictures."""
# without 3-D interfaces the curves are SVG, which can be read
FLAGS = """--headless --no-sandbox --disable-gpu --disable-3d-apis --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update --remote-debugging-port=0 --window-size=1400,1000
--hide-scrollbars --force-device-scale-factor=1""".split()
CARDS = """[...document.querySelectorAll('scalar-card')].map(card => ({
    tag: card.querySelector('.tag')?.textContent.trim() ?? '',
    curves: [...card.querySelectorAll('line-chart svg path')].map(path => ({
        colour: path.style.stroke, shown: path.style.display !== 'none', points: path.getAttribute('d') ?? ''}))}))"""
RUNS = "[...document.querySelectorAll('runs-data-table tb-data-table-content-row')].map(row => row.textContent)"
IMAGES = "[...document.querySelectorAll('image-card img')].some(image => image.complete && image.naturalWidth > 0)"
DEEP = """(function within(root) {  // old pages hide what they hold from the document
    return [...root.querySelectorAll('*')].flatMap(
        e => [e, ...(e.shadowRoot ? within(e.shadowRoot) : [])])})(document)"""
CHARTS = f"{DEEP}.filter(e => e.localName === 'tf-custom-scalar-multi-line-chart-card').length"
ALL_TEXT = f"{DEEP}.map(e => [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join(' ')).join(' ')"

pytestmark = [pytest.mark.needs("browser"), pytest.mark.timeout(600)]


@contextmanager
def process(*command, **options):
    """A process and all that it starts, ended with the block."""
    started = subprocess.Popen([*map(str, command)], start_new_session=True, stdin=subprocess.DEVNULL, **options)
    try:
        yield started
    finally:
        for ending in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(started.pid, ending)
                started.wait(20)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                pass


def until(what, found):
    """The first true answer of `found`, asked again and again."""
    deadline = time.monotonic() + SECONDS
    while not (answer := found()):
        assert time.monotonic() < deadline, f"{what}: nothing within {SECONDS:g} s"
        time.sleep(0.2)
    return answer


class Browser:
    """One page of a Chromium."""

    def __init__(self, folder):
        self._loop = asyncio.new_event_loop()
        port = until("Chromium", lambda: self._port(folder))
        self._do(self._connect(port))
        self._number = itertools.count()

    @staticmethod
    def _port(folder):
        path = folder / "DevToolsActivePort"
        return path.read_text().splitlines()[0] if path.exists() and path.read_text() else None

    async def _connect(self, port):
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json") as answer:
            page = next(target for target in await answer.json() if target["type"] == "page")
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)

    def _do(self, work):
        return self._loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    async def _call(self, method, parameters):
        number = next(self._number)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:  # events come in between
            answer = await self._socket.receive_json()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def call(self, method, **parameters):
        return self._do(self._call(method, parameters))

    def open(self, address):
        self.call("Page.navigate", url=address)

    def ask(self, script):
        """The value of a JavaScript expression, or None where it can't be had yet."""
        answer = self.call("Runtime.evaluate", expression=f"JSON.stringify({script})")["result"]
        return json.loads(answer["value"]) if answer.get("type") == "string" else None

    def picture(self, path):
        """What the page looks like, [H, W, 3]; also saved."""
        content = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(content)
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))

    def close(self):
        self._do(self._socket.close())
        self._do(self._session.close())
        self._loop.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that goes on."""
    folder = tmp_path_factory.mktemp("runs")
    command = ("-m", "topology.cli", "run", CHAIN, f"--runs={folder}", "--plain", "--set=defaults.steps=1000000")
    with (folder / "output").open("w") as output, process(sys.executable, *command, stdout=output, stderr=output):
        until("the run", lambda: list(folder.glob("*/tensorboard/top")))
        yield next(folder.glob("*/run.json")).parent


@pytest.fixture(scope="module")
def board(run):
    """The address of its TensorBoard."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ("-m", "topology.cli", "tensorboard", run, f"--port={port}")
    with process(sys.executable, *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        until("TensorBoard", lambda: _answers(port))
        yield f"http://127.0.0.1:{port}/"


def _answers(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def browser(tmp_path):
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    home = tmp_path / "browser"
    with process(
        chromium, *FLAGS, f"--user-data-dir={home}", "about:blank", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        made = Browser(home)
        yield made
        made.close()


def drawn(browser):
    """Curves with more than a few points that are shown in the accuracy's card, if every learner has one."""
    cards = [card for card in browser.ask(CARDS) or [] if card["tag"] == "validation/accuracy/child"]
    curves = [
        c
        for card in cards
        for c in card["curves"]
        if c["shown"] and c["points"].count("L") + c["points"].count(",") > 4
    ]
    return curves if len({curve["colour"] for curve in curves}) >= len(LEARNERS) else None


def test_every_learner_has_a_curve_and_the_curves_grow(board, browser, tmp_path):
    browser.open(f"{board}?tagFilter=validation%2Faccuracy%2Fchild&smoothing=0#timeseries")
    rows = until(
        "runs in the list", lambda: [row for row in browser.ask(RUNS) or [] if "top" in row] and browser.ask(RUNS)
    )
    for learner in LEARNERS:
        assert any(learner in row for row in rows), rows
    before = until("a curve for each learner", lambda: drawn(browser))
    first, since = browser.picture(tmp_path / "first.png"), time.monotonic()
    until("ten seconds", lambda: time.monotonic() - since >= APART)  # the one wait: what grows meanwhile is looked for
    browser.ask("document.querySelector('app-header-reload button').click()")
    until("longer curves", lambda: drawn(browser) != before)
    second = browser.picture(tmp_path / "second.png")
    place = browser.ask(
        "(r => [r.left, r.top, r.right, r.bottom])(document.querySelector('line-chart').getBoundingClientRect())"
    )
    left, top, right, bottom = map(int, place)
    assert (first[top:bottom, left:right] != second[top:bottom, left:right]).any(axis=2).sum() > 50


def test_the_figures_of_asynchrony_have_a_page_of_their_own(board, browser, tmp_path):
    browser.open(f"{board}#custom_scalars")
    until("its charts", lambda: (browser.ask(CHARTS) or 0) > 4)
    until("its titles", lambda: "staleness in child steps" in (browser.ask(ALL_TEXT) or ""))
    browser.picture(tmp_path / "custom_scalars.png")


def test_the_topology_is_there_as_a_picture(board, browser, tmp_path):
    browser.open(f"{board}?tagFilter=topology#timeseries")
    until("the picture", lambda: browser.ask(IMAGES))
    browser.picture(tmp_path / "topology.png")


LOADED = """performance.getEntriesByType('resource').map(e => e.name.slice(0, 5))"""
PICTURES = """[...document.images].map(i => [i.alt, i.complete && i.naturalWidth > 300])"""


def test_the_report_of_a_live_run_opens_without_a_network(run, browser, tmp_path):
    wanted = ("curves", "clock", "progress", "exchange", "communication")
    command = ("-m", "topology.cli", "analyse", run, f"--out={tmp_path / 'out'}", f"--what={','.join(wanted)}")
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True, timeout=SECONDS)
    browser.call("Network.enable")
    browser.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    browser.open(f"file://{tmp_path}/out/report.html")
    until("all pictures", lambda: (p := browser.ask(PICTURES)) and len(p) == 1 + len(wanted) and all(ok for _, ok in p))
    assert set(browser.ask(LOADED)) <= {"data:"}  # nothing from elsewhere
    browser.picture(tmp_path / "report.png")
