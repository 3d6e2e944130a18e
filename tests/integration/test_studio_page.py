"""The studio in headless Chromium, from the command to a trained classifier."""

import contextlib
import os
import re
import shutil
import subprocess
import sys

import psutil
import pytest

from tests.integration.conftest import SETTINGS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium here to drive the studio with; install one", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.slow
SOON, LATER = 30_000, 120_000  # milliseconds: an answer; a run


@pytest.fixture
def studio(tmp_path, tiny_folder):
    """The studio's process, with its `address`; it ends with the test."""
    command = [sys.executable, "-m", "clozify", "studio", str(tmp_path / "project"), "--no-browser"]
    with subprocess.Popen(
        [*command, "--model", str(tiny_folder("bert"))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            result = re.search(r"http://127\.0\.0\.1:\d+/\?key=\S+", process.stdout.readline())
            assert result
            process.address = result[0]
            yield process
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture
def page(studio):
    """A page with the studio open, and everything that it asked for."""
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.options, page.refused = [], []
        page.on("request", lambda request: page.options.append(request.url))
        page.on("websocket", lambda socket: page.options.append(socket.url))
        page.on(
            "console",
            lambda messages: page.refused.append(messages.text) if "Content Security Policy" in messages.text else None,
        )
        page.set_default_timeout(SOON)
        page.goto(studio.address)
        yield page
        browser.close()


def field(page, label: str, exact: bool = True):
    """The field with this label; while the page is drawn anew there may be two for a moment."""
    result = page.get_by_label(label, exact=exact)
    playwright.expect(result).to_have_count(1, timeout=SOON)
    return result


def fill_until(page, label: str, text: str, answer: str) -> None:
    """Fill a field until the page answers: what is typed while the page is drawn anew is lost."""
    for _ in range(3):
        field(page, label).fill("")
        field(page, label).fill(text)
        with contextlib.suppress(playwright.TimeoutError):
            page.get_by_text(answer).wait_for(timeout=SOON)
            return
    page.get_by_text(answer).wait_for()


def choose(page, box: str, option: str) -> None:
    field(page, box).click()
    page.get_by_role("option", name=option, exact=True).click()


def test_from_a_file_to_a_classifier_in_the_browser(page, studio, files, tmp_path):
    """Each part may work and the page still not: a field that is not read, an answer that is never drawn."""
    assert "key=" not in page.url
    page.locator("input[type=file]").set_input_files(files / "unlabeled.csv")
    page.get_by_text("unlabeled.csv: 50 rows with the columns text.").wait_for()

    fill_until(page, "Pattern 1", "It was {mask}", "uses no field")
    field(page, "Pattern 1").fill("It was {mask}. {text}")
    page.get_by_text("The model's own words").wait_for()
    page.get_by_text("uses no field").wait_for(state="hidden")
    for path, (label, word) in enumerate([("poor", "\u0378"), ("fine", "great")], start=1):
        field(page, f"Label {path}").fill(label)
        field(page, f"Words {path}").fill(word)
    page.get_by_text("similar words that it knows").wait_for()
    field(page, "Words 1").fill("unfathomable")
    page.get_by_text("unfathomable = ").wait_for()
    field(page, "Words 1").fill("bad")
    page.locator("#answers td.cz-answer").first.wait_for()
    page.get_by_role("button", name="Add a pattern").click()
    field(page, "Pattern 2").fill("Just {mask}! || {text}")
    page.locator("#agreement td", has_text="%").first.wait_for()
    page.locator("#answers th", has_text="pattern 2").wait_for()

    page.get_by_role("tab", name="2 Labels").click()
    page.get_by_text("Labelled rows: poor 0, fine 0.").wait_for()
    choose(page, "Label of row 1", "fine")
    page.get_by_text("Labelled rows: poor 0, fine 1.").wait_for()
    choose(page, "Label of row 3", "poor")
    page.get_by_text("Labelled rows: poor 1, fine 1.").wait_for()
    labeled = (tmp_path / "project" / "labeled.csv").read_text().splitlines()
    assert [line.rpartition(",")[2] for line in labeled] == ["label", "fine", "poor"]

    page.get_by_role("tab", name="3 Run").click()
    page.get_by_text("More settings").click()
    field(page, "Recipe settings", exact=False).fill(" ".join([*SETTINGS, "repetitions=1"]))
    field(page, "Recipe settings", exact=False).press("Enter")
    page.get_by_role("button", name="Start the run").click()
    page.get_by_role("heading", name="Run 1: running").wait_for()
    page.get_by_text(re.compile(r"\d of 3 models trained")).wait_for()
    page.get_by_text("--output runs/1").wait_for()
    page.get_by_role("heading", name="Run 1: done").wait_for(timeout=LATER)
    playwright.expect(page.locator("#log")).to_have_count(1, timeout=SOON)
    assert "done in" in page.locator("#log").inner_text()

    page.get_by_text("How good the result is cannot be said").wait_for()
    page.frame_locator("iframe").get_by_text("clozify report").first.wait_for()

    page.get_by_role("tab", name="4 Try").click()
    page.get_by_role("textbox", name="text", exact=True).fill("a fine game <b>for all</b>")
    page.get_by_role("button", name="Classify").click()
    playwright.expect(page.locator("#classified")).to_have_count(1, timeout=SOON)
    assert set(re.findall(r"poor|fine", page.locator("#classified").inner_text())) == {"poor", "fine"}
    page.get_by_text("which is not calibrated").wait_for()
    page.get_by_text(re.compile("^(In|Out of) scope: ")).wait_for()
    choose(page, "Answer", "confidences of at least (--min-confidence)")
    page.get_by_text(re.compile("^(A|Not a)nswered: the confidence is")).wait_for()
    page.get_by_role("button", name="Which words moved the label?").click()
    page.locator("#explained").wait_for()
    assert "<b>for all</b>" in page.locator("#explained").inner_text()

    page.get_by_role("tab", name="2 Labels").click()
    page.get_by_text("What to label next").click()
    page.get_by_role("button", name="Suggest rows to label").click()
    page.get_by_text("What the next 20 labels bring cannot be estimated").wait_for()
    page.get_by_text("predicted so far by run 1").first.wait_for()
    page.get_by_text("Labels that may be wrong").click()
    page.get_by_role("button", name="Look for wrong labels").click()
    page.get_by_text("2 labelled rows", exact=False).first.wait_for()

    page.get_by_role("tab", name="3 Run").click()
    page.get_by_role("button", name="Start the run").click()
    page.get_by_role("heading", name="Run 2: running").wait_for()
    working = psutil.Process(studio.pid).children(recursive=True)
    assert working
    studio.terminate()
    studio.wait(timeout=20)
    assert not [process for process in working if process.is_running()]  # nobody could stop it any more

    here = studio.address.split("/")[2]
    elsewhere = [
        url for url in page.options if not url.startswith((f"http://{here}/", f"ws://{here}/", "data:", "blob:"))
    ]
    assert elsewhere == []
    assert page.refused == []
    assert len(page.options) > 10
