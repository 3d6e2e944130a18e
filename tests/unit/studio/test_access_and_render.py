"""The studio's access control, and its HTML, which escapes all text."""

import asyncio
import base64
import re
import tomllib
from importlib.resources import files
from xml.etree import ElementTree

import numpy as np
import pytest

from clozify.inference.explain import Explanation, WordEffect
from clozify.report.scores import Score
from clozify.report.selective import AnsweredRows, Curve, Selective
from clozify.studio import render
from clozify.studio.finished_runs import Verdict
from clozify.studio.preview import Preview, TypedWord
from clozify.studio.run_numbers import RunNumbers
from clozify.studio.server import AccessMiddleware, redirect_file

NASTY = "<script>alert(1)</script>\"'&"
PORT = 8123


def make_preview() -> Preview:
    scores = np.array([[[3.0, 1], [1, 3], [3, 1]], [[3, 1], [3, 1], [3, 1]]]) / 4
    return Preview(["a", NASTY], patterns=[0, 2], probabilities=scores, ensemble=scores.mean(axis=0))


def make_explanation() -> Explanation:
    words = [
        WordEffect(text=NASTY, field="text", start=0, end=len(NASTY), read=True, effect=1.5),
        WordEffect(text="x", field="text", start=len(NASTY) + 1, end=len(NASTY) + 2, read=True, effect=-1.0),
    ]
    return Explanation(
        id=0,
        label=NASTY,
        predicted=True,
        probability=0.5,
        runner_up=None,
        runner_up_probability=None,
        texts={"text": f"{NASTY} x"},
        words=words,
        grouped=False,
    )


def send_request(kind: str = "http", query: bytes = b"", **headers: str) -> tuple[int, dict[bytes, bytes], bool]:
    """The middleware's answer: the status (0: a closed websocket), the headers, whether the page saw the request."""
    sent, seen = [], []

    async def page(scope, receive, send):
        seen.append(scope)
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"set-cookie", b"x"), (b"set-cookie", b"y")]}
        )

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    named = {"host": f"127.0.0.1:{PORT}", **headers}
    scope = {
        "type": kind,
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    asyncio.run(AccessMiddleware(page, "secret", PORT)(scope, receive, send))
    first = sent[0]
    return first.get("status", 0), dict(first.get("headers", [])), bool(seen)


KNOWN = f"other=1; clozify-studio-{PORT}=secret"


def test_the_key_in_the_address_is_changed_for_a_cookie():
    """A key that stays in the address is kept by the browser's history and shown to whoever looks on."""
    status, headers, seen = send_request(query=b"key=secret")
    assert (status, headers[b"location"], seen) == (303, b"/", False)
    assert headers[b"set-cookie"].startswith(f"clozify-studio-{PORT}=secret; HttpOnly; SameSite=Lax".encode())
    status, headers, seen = send_request(cookie=KNOWN)
    assert (status, seen) == (200, True)
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert "http" not in headers[b"content-security-policy"].decode().replace(f"ws://127.0.0.1:{PORT}", "")


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"cookie": f"clozify-studio-{PORT}=guess"},
        {"cookie": "clozify-studio-1=secret"},
        {"cookie": KNOWN, "host": f"evil.example:{PORT}"},
        {"cookie": KNOWN, "host": "127.0.0.1:1"},
        {"cookie": KNOWN, "origin": "http://evil.example"},
        {"cookie": KNOWN, "origin": "null"},
        {"cookie": KNOWN, "origin": "http://127.0.0.1:1"},
    ],
)
def test_another_site_or_a_stranger_cannot_drive_the_page(kind, headers):
    """Any site that is open in the browser can send requests here; a name of its own can be made to point here."""
    status, _, seen = send_request(kind, **headers)
    assert status == (403 if kind == "http" else 0)
    assert not seen


def test_a_websocket_of_the_page_itself_is_let_in():
    assert send_request("websocket", cookie=KNOWN, origin=f"http://127.0.0.1:{PORT}")[2]
    assert not send_request("websocket", query=b"key=secret")[2]


def test_the_page_that_leads_a_browser_to_the_key_is_private_and_goes(tmp_path):
    (tmp_path / "open-studio.html").write_text("of a studio that was killed")  # readable by all
    with redirect_file(tmp_path, "http://127.0.0.1:1/?key=se&cret") as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert "url=http://127.0.0.1:1/?key=se&amp;cret" in path.read_text()
    assert not path.exists()


def test_streamlit_sends_nothing_and_listens_here_alone():
    """Streamlit's own default is to report every use; the file must be next to the script, and in the package."""
    settings = tomllib.loads((files("clozify.studio") / ".streamlit" / "config.toml").read_text())
    assert settings["browser"]["gatherUsageStats"] is False
    assert settings["server"]["address"] == "127.0.0.1"
    assert settings["server"]["enableAgentApi"] is False


def test_a_text_stays_a_text():
    """A row that holds HTML would else run in the page that can start runs."""
    truth = np.array([1, -1, 0], dtype=np.int16)
    shown = [
        render.problem([NASTY]),
        render.note([NASTY]),
        render.success([NASTY]),
        render.label_words([TypedWord(NASTY, [NASTY, NASTY]), TypedWord(NASTY, [], False, (NASTY,))]),
        render.top_words([NASTY]),
        render.row_text(NASTY),
        render.answers(make_preview(), [NASTY] * 3, truth),
        render.bars([(NASTY, 0.5)]),
        render.log([NASTY]),
        render.verdict(Verdict(NASTY, False, [NASTY])),
        render.scores(RunNumbers(None, "accuracy", 9, [Score(NASTY, 0.5, 0.4, interval=(0.2, 0.8))], None, [])),
        render.explanation(make_explanation()),
    ]
    for html in shown:
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_words_for_and_against_a_label_are_marked_and_listed():
    html = render.explanation(make_explanation())
    assert html.count('<mark class="for s3">') == 1
    assert html.count('<mark class="against s2">x</mark>') == 1
    assert "+1.50, x -1.00." in html


def test_risk_against_coverage_is_the_reports_drawing_as_an_image():
    """The page removes inline SVG, so that the drawing has to be an image."""
    points = [(0.5, 0.0), (1.0, 0.1)]
    curve = Curve("test rows", 20, points, [AnsweredRows(1.0, 0.9, (0.7, 0.97))])
    html = render.risk_coverage(Selective([curve], 0.1))
    (encoded,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    drawing = ElementTree.fromstring(base64.b64decode(encoded))
    assert [path.get("d") for path in drawing if path.get("class") == "curve0"] == ["M50.00 100.00L100.00 0.00"]
    assert "Answering all rows, 90% of the answers are right (95% interval 70 to 97)." in html
    assert "risk on 20 test rows" in html


def test_the_table_marks_who_differs_and_who_is_wrong():
    html = render.answers(make_preview(), ["x", "y", "z"], np.array([1, 0, -1], dtype=np.int16))
    assert html.count("cz-differs") == 1
    assert html.count("cz-wrong") == 1
    assert html.count("cz-right") == 1
    assert html.index("row") < html.index("all patterns") < html.index("pattern 1") < html.index("pattern 3")


def test_agreement_and_accuracy_count_rows():
    result = make_preview()
    assert result.agreement() == pytest.approx(np.array([[1, 2 / 3], [2 / 3, 1]]))
    assert result.accuracy(np.array([0, 1, -1], dtype=np.int16)) == ([1.0, 0.5], 0.5)
    assert result.accuracy(np.array([-1, -1, -1], dtype=np.int16)) is None
    html = render.agreement(result, ([1.0, 0.5], 0.5))
    assert html.count("67%") == 2
    assert "100.0%" in html


def luminance(colour: str) -> float:
    """The relative luminance of a colour as WCAG 2 defines it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_coloured_text_can_be_read_on_a_light_and_on_a_dark_page():
    """WCAG asks for a contrast of 4.5; the second background is Streamlit's dark one."""
    pairs = re.findall(r"[^-]color: light-dark\((#\w{6}), (#\w{6})\)", render.STYLE)
    assert len(pairs) == 3
    for colours in pairs:
        for colour, background in zip(colours, ("#ffffff", "#171614"), strict=True):
            light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 4.5, colour


def test_words_are_shown_with_their_tokens():
    words = [
        TypedWord("great", ["great"]),
        TypedWord("maths stuff", ["math", "##s", "stuff"]),
        TypedWord("é", [], False),
    ]
    html = render.label_words(words)
    assert ">great<" in html
    assert ">maths stuff = math + ##s + stuff<" in html
    assert 'cz-unusable">é = no token<' in html
