"""Collect the built-in sample with many labels from the tags of Debian packages.

    python scripts/collect_debian_tags.py src/clozify/builtin/debian-tags

reads the same lists as `collect_debian.py`, whose rules for descriptions, near duplicates and splits apply. The label
of a package is the one of LABELS whose tag it has (field `Tag` of the list, see https://debtags.debian.org). A package
with two of them can be an unlabelled row only.
"""

import re
from collections import defaultdict

from collect_debian import hash_order, parse_options, read_packages, write_splits

LABELS = {  # group -> label -> tags
    "games": {
        "arcade-game": "game::arcade",
        "board-game": "game::board",
        "chess": "game::board:chess",
        "puzzle-game": "game::puzzle",
        "role-playing-game": "game::rpg game::rpg:rogue",
        "strategy-game": "game::strategy",
    },
    "science": {
        "biology": "field::biology field::biology:bioinformatics field::biology:structural",
        "chemistry": "field::chemistry",
        "electronics": "field::electronics",
        "geography": "field::geography hardware::gps",
        "mathematics": "field::mathematics",
        "medicine": "field::medicine field::medicine:imaging",
    },
    "system": {
        "backup": "admin::backup",
        "boot": "admin::boot",
        "file-system": "admin::filesystem",
        "log-files": "admin::logging works-with::logfile",
        "monitoring": "admin::monitoring",
        "package-management": "admin::package-management",
        "power-management": "admin::power-management hardware::power hardware::power:acpi",
        "virtualization": "admin::virtualization",
    },
    "hardware": {
        "amateur-radio": "hardware::hamradio",
        "camera": "hardware::camera",
        "compact-disc": "hardware::storage:cd",
        "emulator": "hardware::emulation",
        "modem": "hardware::modem",
        "printer": "hardware::printer use::printing",
    },
    "development": {
        "build-tool": "devel::buildtools",
        "code-generator": "devel::code-generator",
        "compiler": "devel::compiler",
        "debugger": "devel::debugger",
        "interpreter": "devel::interpreter",
        "software-testing": "devel::testing-qa",
        "version-control": "devel::rcs works-with::vcs",
    },
    "network": {
        "chat": "protocol::irc use::chatting",
        "domain-names": "protocol::dns",
        "mail": "works-with::mail",
        "news": "protocol::nntp",
        "packet-analysis": "works-with::network-traffic network::scanner",
        "vpn": "network::vpn",
    },
    "security": {
        "authentication": "security::authentication",
        "encryption": "security::cryptography",
        "firewall": "security::firewall network::firewall",
    },
    "media": {
        "audio-mixer": "sound::mixer",
        "audio-player": "sound::player",
        "font": "made-of::font works-with::font x11::font",
        "image": "works-with::image works-with::image:raster",
        "midi": "sound::midi",
        "speech": "sound::speech accessibility::speech",
        "video": "works-with::video",
    },
    "documents": {
        "archive": "works-with::archive use::compressing",
        "contacts-and-calendar": "works-with::pim",
        "database": "works-with::db",
        "dictionary": "made-of::dictionary works-with::dictionary",
        "pdf": "works-with-format::pdf works-with-format::postscript",
        "typesetting": "use::typesetting works-with-format::tex",
        "xml": "works-with-format::xml works-with-format::docbook",
    },
    "desktop": {
        "clock": "use::timekeeping",
        "desktop-theme": "x11::theme",
        "terminal": "x11::terminal",
        "window-manager": "x11::window-manager",
    },
}
LABEL_OF_TAG = {tag: label for labels in LABELS.values() for label, tags in labels.items() for tag in tags.split()}
# What a package reads or writes says less than what it is for: these count only where there is no other label.
GENERAL = {"archive", "board-game", "database", "image", "mail", "monitoring", "pdf", "video", "xml"}
SEVERAL = "several"  # label of a package with tags of two labels
LEFT_OUT = re.compile(r"^tryton-")  # ninety modules of one business program
LABELED_PER_LABEL = 6
TEST_FRACTION, MAX_TEST_ROWS = 1 / 2, 20  # test rows per label: a fraction of its remaining sources, up to a limit


def label_of(stanza: dict[str, str]) -> str | None:
    """The label of a package by its tags, SEVERAL where they disagree, None where there is none."""
    if LEFT_OUT.search(stanza["Package"]):
        return None
    labels = {LABEL_OF_TAG[tag] for tag in re.split(r",\s*", stanza.get("Tag", "").strip()) if tag in LABEL_OF_TAG}
    labels = labels - GENERAL or labels
    return SEVERAL if len(labels) > 1 else next(iter(labels), None)


def split(sources: dict[str, list[dict[str, str]]]) -> dict[str, list[dict[str, str]]]:
    """Divide the sources: one package each for labeled and test, all packages of the other sources for unlabeled."""
    by_label: dict[str, list[str]] = defaultdict(list)
    for source, packages in sources.items():
        by_label[packages[0]["label"]].append(source)
    splits: dict[str, list[dict[str, str]]] = {"labeled": [], "unlabeled": [], "test": []}
    for label in sorted(by_label):
        names, test_count = hash_order(by_label[label]), 0
        if label != SEVERAL:
            labeled, names = names[:LABELED_PER_LABEL], names[LABELED_PER_LABEL:]
            test_count = min(MAX_TEST_ROWS, round(TEST_FRACTION * len(names)))
            splits["labeled"] += [sources[source][0] for source in labeled]
            splits["test"] += [sources[source][0] for source in names[:test_count]]
        splits["unlabeled"] += [row for source in names[test_count:] for row in sources[source]]
    return splits


def main() -> None:
    """Read the lists, split the packages and write the files."""
    options = parse_options()
    write_splits(options.folder, split(read_packages(options.release, label_of)))


if __name__ == "__main__":
    main()
