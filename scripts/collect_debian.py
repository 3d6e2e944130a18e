"""Collect the built-in sample data from the package lists of a Debian machine.

    python scripts/collect_debian.py src/clozify/builtin/debian

reads apt's `Packages` list (name, source, section, one-line description) and `Translation-en` list (long description)
of the main component of one release; update them first with `apt-get update -o Acquire::Languages=en`. It writes
`labeled.csv.gz`, `unlabeled.csv.gz` and `test.csv.gz` with the columns id (package), source, summary, description and,
except for the unlabelled rows, label.

The same lists always give the same bytes: a hash of the source package's name decides the split.
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
from collections.abc import Callable, Iterable, Iterator
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
LABELED_PER_LABEL = 20
TEST_FRACTION, MAX_TEST_ROWS = 1 / 3, 120  # test rows per label: a fraction of its remaining sources, up to a limit
MAX_PER_SOURCE = 3  # packages kept of one source
MIN_LENGTH, MAX_LENGTH = 40, 600  # characters of a description
NGRAM, MAX_OVERLAP = 5, 0.5  # a near duplicate shares half of its word 5-grams with an earlier package

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


def read_list(list_type: str, release: str) -> Iterator[dict[str, str]]:
    """Yield the stanzas of apt's list of this type (Packages, Translations) for the main component of a release."""
    command = ["apt-get", "indextargets", "-o", "Acquire::Languages=en", "--format", "$(FILENAME)"]
    filters = [f"Created-By: {list_type}", f"Codename: {release}", "Component: main"]
    files = subprocess.run([*command, *filters], capture_output=True, text=True, check=True).stdout.splitlines()
    if not files:
        raise SystemExit(f"no {list_type} list of {release} main: run apt-get update -o Acquire::Languages=en")
    cat = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", files[0]], capture_output=True, check=True)
    for stanza in cat.stdout.decode().strip().split("\n\n"):
        fields = re.split(r"\n(?! )", stanza)
        yield {name: value.lstrip(" ") for name, _, value in (field.partition(":") for field in fields)}


def to_one_line(description: str) -> str:
    """The body of a Debian description on one line: whole sentences without addresses, up to MAX_LENGTH characters."""
    blocks = [""]  # paragraphs and list items
    for line in description.splitlines():
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
        if len(" ".join([*kept, sentence])) > MAX_LENGTH:
            break
        kept.append(sentence)
    while kept and kept[-1][-1] in ":,":  # announces something that was cut off
        kept.pop()
    return " ".join(kept) or textwrap.shorten(" ".join(sentences), MAX_LENGTH, placeholder=" ...")


def word_ngrams(text: str) -> set[str]:
    """The word n-grams of a text, which near duplicates share."""
    words = re.findall(r"[a-z]+", text.lower())
    return {" ".join(words[start : start + NGRAM]) for start in range(max(1, len(words) - NGRAM + 1))}


def without_duplicates(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield the rows whose description does not repeat an earlier one, MAX_PER_SOURCE of a source at most."""
    sizes: list[int] = []
    rows_with: dict[str, list[int]] = defaultdict(list)  # n-gram -> indices of the kept rows that contain it
    sources: Counter[str] = Counter()
    for row in rows:
        ngrams = word_ngrams(row["description"])
        shared = Counter(index for ngram in ngrams for index in rows_with[ngram])
        repeats = any(count >= MAX_OVERLAP * min(len(ngrams), sizes[index]) for index, count in shared.items())
        if repeats or sources[row["source"]] == MAX_PER_SOURCE:
            continue
        for ngram in ngrams:
            rows_with[ngram].append(len(sizes))
        sizes.append(len(ngrams))
        sources[row["source"]] += 1
        yield row


def read_packages(
    release: str, label_of: Callable[[dict[str, str]], str | None] = lambda stanza: LABELS.get(stanza["Section"])
) -> dict[str, list[dict[str, str]]]:
    """Read the packages worth keeping by source, the main package of each source first.

    `label_of` returns the label of a stanza of the Packages list, None for a package to leave out.
    """
    bodies = {stanza["Description-md5"]: stanza["Description-en"] for stanza in read_list("Translations", release)}
    rows = []
    for stanza in read_list("Packages", release):
        name, summary = stanza["Package"], stanza["Description"].rstrip(".")
        source = stanza.get("Source", name).split()[0]
        _, _, body = bodies.get(stanza["Description-md5"], "").partition("\n")
        if (label := label_of(stanza)) is None or PART_NAME.search(name) or ("-plugin" in name and name != source):
            continue
        if not PART_SUMMARY.search(summary) and not EMPTY.search(body):
            values = [name, source, summary, to_one_line(body), label]
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    rows.sort(key=lambda row: (row["source"], row["id"] != row["source"], len(row["id"]), row["id"]))

    sources: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in without_duplicates([row for row in rows if len(row["description"]) >= MIN_LENGTH]):
        sources[row["source"]].append(row)
    return sources


def hash_order(names: Iterable[str]) -> list[str]:
    """Names in an order that looks random and never changes."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def split(sources: dict[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """Divide the sources: one package each for labeled and test, all packages of the other sources for unlabeled."""
    splits: dict[str, list[dict[str, str]]] = {"labeled": [], "unlabeled": [], "test": []}
    for label in sorted(set(LABELS.values())):
        names = hash_order(source for source, packages in sources.items() if packages[0]["label"] == label)
        labeled, remaining = names[:LABELED_PER_LABEL], names[LABELED_PER_LABEL:]
        test_count = min(MAX_TEST_ROWS, round(TEST_FRACTION * len(remaining)))
        splits["labeled"] += [sources[source][0] for source in labeled]
        splits["test"] += [sources[source][0] for source in remaining[:test_count]]
        splits["unlabeled"] += [row for source in remaining[test_count:] for row in sources[source]]
    return splits


def check(splits: dict[str, list[dict[str, str]]]) -> None:
    """Exit if two splits share a source package or a description."""
    for column in ("source", "id", "description"):
        splits_with: dict[str, set[str]] = defaultdict(set)
        for name, rows in splits.items():
            for row in rows:
                splits_with[row[column]].add(name)
        if shared := [value for value, names in splits_with.items() if len(names) > 1]:
            raise SystemExit(f"in more than one split, nothing written: {column} {shared[:5]}")


def write(path: Path, rows: list[dict[str, str]], columns: list[str]) -> None:
    """Write rows as gzipped CSV, without a time stamp so that the same rows give the same bytes."""
    by_id = {row["id"]: row for row in rows}
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(by_id[name] for name in hash_order(by_id))
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def parse_options() -> argparse.Namespace:
    """The command's folder and release."""
    parser = argparse.ArgumentParser(description="Collect sample data from the package lists of a Debian machine.")
    parser.add_argument("folder", type=Path, help="folder for the three files")
    parser.add_argument("--release", default="bookworm", help="codename of the Debian release (default: %(default)s)")
    return parser.parse_args()


def write_splits(folder: Path, splits: dict[str, list[dict[str, str]]]) -> None:
    """Check the splits, write a file each, and print their sizes."""
    check(splits)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        path = folder / f"{name}.csv.gz"
        write(path, rows, COLUMNS[:-1] if name == "unlabeled" else COLUMNS)
        labels = ", ".join(f"{label} {count}" for label, count in sorted(Counter(row["label"] for row in rows).items()))
        print(f"{path}: {path.stat().st_size} bytes, {len(rows)} rows: {labels}")


def main() -> None:
    """Read the lists, split the packages and write the three files."""
    options = parse_options()
    write_splits(options.folder, split(read_packages(options.release)))


if __name__ == "__main__":
    main()
