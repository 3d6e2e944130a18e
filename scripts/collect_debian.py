"""Collect the built-in sample data from the package lists of a Debian machine.

In:  the lists that apt keeps, brought up to date with `apt-get update -o Acquire::Languages=en`: the `Packages`
     list (name, source, section, one-line description) and the `Translation-en` list (long description) of the
     main component of one release.
Out: `labeled.csv.gz`, `unlabeled.csv.gz` and `test.csv.gz` in the folder given, each with the columns id (package),
     source, summary, description and, except in the unlabeled file, label.

Run: python scripts/collect_debian.py src/clozify/builtin/debian

The same lists always give the same bytes: a hash of the source package's name decides what goes where.
"""

import argparse
import csv
import gzip
import hashlib
import io
import re
import subprocess
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

COLUMNS = ["id", "source", "summary", "description", "label"]
LABELS = {  # section of the archive -> label; every label is a single token of the built-in model
    "database": "database",
    "editors": "editor",
    "electronics": "electronics",
    "fonts": "font",
    "games": "games",
    "graphics": "graphics",
    "hamradio": "radio",
    "httpd": "web",
    "mail": "mail",
    "math": "mathematics",
    "net": "network",
    "science": "science",
    "sound": "music",
    "video": "video",
    "web": "web",
}
LABELED_EACH = 20  # labeled rows of each label
TEST_SHARE, TEST_MOST = 1 / 3, 120  # test rows of each label: a share of its remaining sources, up to a limit
PER_SOURCE = 3  # packages kept of one source
SHORTEST, LONGEST = 40, 600  # characters of a description
RUN, SAME = 5, 0.5  # a near duplicate shares half of its runs of five words with a package kept before

# Libraries, language bindings, and parts split off another package, by name and by one-line description.
PART_NAME = re.compile(
    r"^(lib(?!reoffice|retro)|(elpa|gap|ghc|golang|haskell|lua|node|octave|php|python3?|r|ruby|rust|task|tcl)-)"
    r"|-(all|assets|base|bin|common|config|core|data|dbg|demos?|dev|dkms|docs?|examples?|extras?|full|headers|i18n|icons"
    r"|l10n|lang|levels|lib|libs|locales?|maps|modules?|music|plugins?|runtime|sounds?|source|src|static|tests?|themes?)"
    r"[\d.]*$"
)
PART_SUMMARY = re.compile(
    r"transitional|\bdummy|meta[- ]?package|dependency package"
    r"|\b(debugging|development|header|common|data|shared|help) files"
    r"|\bdocumentation\b|\bdata for\b|language (pack|data|file)|translation data|\b(library|libraries|bindings)\b"
    r"|\bopenstack\b",
    re.IGNORECASE,
)
EMPTY = re.compile(r"meta[- ]?package|(transitional|dummy|empty|dependency) package|\bopenstack\b", re.IGNORECASE)
ADDRESS = re.compile(r"://|www\.|\S@\S")
BULLET = re.compile(r"\s+([-*+•·]|o) +")


def read_list(kind: str, release: str) -> Iterator[dict[str, str]]:
    """Yield the stanzas of the first list of a kind (Packages, Translations) that apt has of a release's main."""
    compile_task = ["apt-get", "indextargets", "-o", "Acquire::Languages=en", "--format", "$(FILENAME)"]
    only = [f"Created-By: {kind}", f"Codename: {release}", "Component: main"]
    files = subprocess.run([*compile_task, *only], capture_output=True, text=True, check=True).stdout.splitlines()
    if not files:
        raise SystemExit(f"no {kind} list of {release} main: run apt-get update -o Acquire::Languages=en")
    cat = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", files[0]], capture_output=True, check=True)
    for stanza in cat.stdout.decode().strip().split("\n\n"):
        fields = re.split(r"\n(?! )", stanza)
        yield {name: value.lstrip(" ") for name, _, value in (field.partition(":") for field in fields)}


def plain(long: str) -> str:
    """Put the body of a Debian description on one line: whole sentences that give no address, up to LONGEST."""
    blocks = [""]  # paragraphs and list items
    for line in long.splitlines():
        text = BULLET.sub("", line, count=1) if (bullet := BULLET.match(line)) else line
        if bullet or line.strip() == ".":
            blocks.append("")
        if line.strip() != ".":
            blocks[-1] = f"{blocks[-1]} {' '.join(text.split())}".strip()
    blocks = [block if block[-1] in ".!?:;," else block + "." for block in blocks if block]
    sentences = [sentence for block in blocks for sentence in re.split(r"(?<=[.!?]) (?=[A-Z0-9\"'(])", block)]
    sentences = [sentence for sentence in sentences if not ADDRESS.search(sentence)]
    kept: list[str] = []
    for sentence in sentences:
        if len(" ".join([*kept, sentence])) > LONGEST:
            break
        kept.append(sentence)
    while kept and kept[-1][-1] in ":,":  # announces what is not there any more
        kept.pop()
    return " ".join(kept) or textwrap.shorten(" ".join(sentences), LONGEST, placeholder=" ...")


def runs(text: str) -> set[str]:
    """The runs of RUN words in a text: what two near duplicates have in common."""
    words = re.findall(r"[a-z]+", text.lower())
    return {" ".join(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1))}


def distinct(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the rows whose description does not repeat one before, PER_SOURCE of a source at most."""
    sizes: list[int] = []
    homes: dict[str, list[int]] = defaultdict(list)  # run of words -> the rows kept that have it
    sources: Counter[str] = Counter()
    for row in rows:
        mine = runs(row["description"])
        shared = Counter(number for run in mine for number in homes[run])
        repeats = any(count >= SAME * min(len(mine), sizes[number]) for number, count in shared.items())
        if repeats or sources[row["source"]] == PER_SOURCE:
            continue
        for run in mine:
            homes[run].append(len(sizes))
        sizes.append(len(mine))
        sources[row["source"]] += 1
        yield row


def read_packages(release: str) -> dict[str, list[dict[str, str]]]:
    """Read the packages worth keeping by source, the main package of each source first."""
    bodies = {stanza["Description-md5"]: stanza["Description-en"] for stanza in read_list("Translations", release)}
    rows = []
    for stanza in read_list("Packages", release):
        name, summary = stanza["Package"], stanza["Description"].rstrip(".")
        source = stanza.get("Source", name).split()[0]
        _, _, body = bodies.get(stanza["Description-md5"], "").partition("\n")
        if stanza["Section"] not in LABELS or PART_NAME.search(name) or ("-plugin" in name and name != source):
            continue
        if not PART_SUMMARY.search(summary) and not EMPTY.search(body):
            values = [name, source, summary, plain(body), LABELS[stanza["Section"]]]
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    rows.sort(key=lambda row: (row["source"], row["id"] != row["source"], len(row["id"]), row["id"]))

    sources: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in distinct([row for row in rows if len(row["description"]) >= SHORTEST]):
        sources[row["source"]].append(row)
    return sources


def in_order(names: Iterable[str]) -> list[str]:
    """Put names in an order that looks random and never changes."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def split(sources: dict[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """Deal the sources out: one package each to labeled and test, all that are left to unlabeled."""
    splits: dict[str, list[dict[str, str]]] = {"labeled": [], "unlabeled": [], "test": []}
    for label in sorted(set(LABELS.values())):
        mine = in_order(source for source, packages in sources.items() if packages[0]["label"] == label)
        labeled, rest = mine[:LABELED_EACH], mine[LABELED_EACH:]
        tested = min(TEST_MOST, round(TEST_SHARE * len(rest)))
        splits["labeled"] += [sources[source][0] for source in labeled]
        splits["test"] += [sources[source][0] for source in rest[:tested]]
        splits["unlabeled"] += [row for source in rest[tested:] for row in sources[source]]
    return splits


def check(splits: dict[str, list[dict[str, str]]]) -> None:
    """Refuse splits that share a source package or a description."""
    for column in ("source", "id", "description"):
        homes: dict[str, set[str]] = defaultdict(set)
        for name, rows in splits.items():
            for row in rows:
                homes[row[column]].add(name)
        if shared := [value for value, names in homes.items() if len(names) > 1]:
            raise SystemExit(f"in more than one split, nothing written: {column} {shared[:5]}")


def write(path: Path, rows: list[dict[str, str]], columns: list[str]) -> None:
    """Write rows as CSV, compressed without a time or a name so that the same rows give the same bytes."""
    by_id = {row["id"]: row for row in rows}
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(by_id[name] for name in in_order(by_id))
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main() -> None:
    """Read the lists, deal the packages out and write the three files."""
    parser = argparse.ArgumentParser(description="Collect sample data from the package lists of a Debian machine.")
    parser.add_argument("folder", type=Path, help="where the three files go")
    parser.add_argument("--release", default="bookworm", help="codename of the Debian release (default: %(default)s)")
    options = parser.parse_args()

    splits = split(read_packages(options.release))
    check(splits)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        path = options.folder / f"{name}.csv.gz"
        write(path, rows, COLUMNS[:-1] if name == "unlabeled" else COLUMNS)
        labels = ", ".join(f"{label} {count}" for label, count in sorted(Counter(row["label"] for row in rows).items()))
        print(f"{path}: {path.stat().st_size} bytes, {len(rows)} rows: {labels}")


if __name__ == "__main__":
    main()
