"""Build the documentation's site: `python scripts/build_site.py [FOLDER]`, by default into `site/`.

The pages in `docs/`, a few others of the repository and the package's docstrings become HTML that opens from the disk
and loads nothing from the network. A broken link, or a name without an object, fails the build and leaves an earlier
site unchanged.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHER_PAGES = {  # path in the repository -> name in the site
    "benchmarks/RESULTS.md": "benchmarks.md",
    "src/clozify/builtin/clozify-small/README.md": "clozify-small.md",
    "src/clozify/builtin/clozify-mini/README.md": "clozify-mini.md",
    "src/clozify/builtin/debian/README.md": "sample-data.md",
    "src/clozify/builtin/debian-tags/README.md": "sample-tags.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def pages() -> dict[str, str]:
    """Each page's path in the repository and its name in the site."""
    return {f"docs/{path.name}": path.name for path in sorted((ROOT / "docs").glob("*.md"))} | OTHER_PAGES


def convert_page(source: str) -> str:
    """A page's text with links between files of the repository replaced by links between pages of the site."""
    names = pages()

    def site_link(link: re.Match[str]) -> str:
        return names.get(posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1])), link[1])

    return LINK.sub(site_link, (ROOT / source).read_text(encoding="utf-8"))


def build(output: Path) -> int:
    """Build the site in a temporary folder, then move it to `output`; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "docs").mkdir()
        for source, name in pages().items():
            (work / "docs" / name).write_text(convert_page(source), encoding="utf-8")
        (work / "src").symlink_to(ROOT / "src")
        shutil.copy2(ROOT / "mkdocs.yml", work)
        status = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=work).returncode
        if status == 0:
            shutil.rmtree(output, ignore_errors=True)
            shutil.copytree(work / "site", output)
            print(f"The site is in {output}; open {output / 'index.html'}.")
    return status


if __name__ == "__main__":
    sys.exit(build(Path(*sys.argv[1:2] or ["site"])))
