"""The documentation's site, built as `make docs` builds it."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import clozify

ROOT = Path(__file__).parents[2]
pytest.importorskip("zensical", reason="the site is built by Zensical: pip install '.[docs]'")
pytestmark = pytest.mark.slow
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "built"
    command = [sys.executable, str(ROOT / "scripts" / "build_site.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_is_in_the_navigation(site):
    """Readers find a page only through the navigation."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    entries = [entry for section in sections for entry in section.values()]
    quoted = {
        name
        for entry in entries
        for page in (entry if isinstance(entry, list) else [{"": entry}])
        for name in page.values()
    }
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= quoted
    for name in quoted:
        assert (site / name).with_suffix(".html").is_file()


def test_the_api_page_shows_every_public_name_with_its_docstring(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in clozify.__all__:
        assert f'id="clozify.{name}"' in page
    assert "A text classifier trained by PET, as a scikit-learn estimator." in page


def test_no_page_loads_anything_from_elsewhere(site):
    """A page must look the same without a network, and must not report its readers to other sites."""
    loaded = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if (address := dict(attrs).get(LOADS.get(tag, ""))) and dict(attrs).get("rel") != "canonical":
                loaded.append(address)

    for page in site.rglob("*.html"):
        Reader().feed(page.read_text(encoding="utf-8"))
    assert len(loaded) > 20
    assert not [address for address in loaded if re.match(r"(https?:)?//", address)]
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8"))


def test_a_broken_link_fails_the_build(monkeypatch, tmp_path):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import build_site
    finally:
        sys.path.pop(0)
    monkeypatch.setattr(build_site, "convert_page", lambda source: "[gone](nowhere.md)\n")
    assert build_site.build(tmp_path / "site") != 0
    assert not (tmp_path / "site").exists()
    assert build_site.pages()["benchmarks/RESULTS.md"] == "benchmarks.md"
