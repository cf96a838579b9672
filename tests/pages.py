"""The pages a newcomer reads, taken apart: commands, snippets, links."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A program is started as it is, with variables before it, or by a launcher of many processes.
PROGRAMS = ("hylorada", "python", "make", "torchrun", "accelerate")


class Block(NamedTuple):
    """A fenced block: the line its text begins at, its language, and its text."""

    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """Return the words of every command in it, without variables set before one."""
        if self.language == "python":
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        found = [shlex.split(line, comments=True) for line in lines if is_command(line)]
        return [words[next(i for i, w in enumerate(words) if "=" not in w) :] for words in found]


def is_command(line: str) -> bool:
    """Return whether a line starts one of the programs."""
    started = re.sub(r"^([A-Z_]+=\S+ )*", "", line).split(maxsplit=1)
    return bool(started) and started[0] in PROGRAMS


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start()) + 2, found.group(1), found.group(2))
        for found in FENCE.finditer(text)
    ]


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def job_of(words: list[str]) -> tuple[str, list[str]]:
    """Return the sub-command of hylorada that a command starts, and its words."""
    start = words.index("hylorada")
    return words[start + 1], words[start + 2 :]


def links(page: Path) -> list[str]:
    """Return where a page's links lead, without those to other sites."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [target for target in LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Return the names under which a page's headings can be linked to."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def rows_under(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^#+ `?{re.escape(heading)}`?\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.M)
    table = re.findall(r"^\| (.*) \|$", found.group(1) if found else "", re.MULTILINE)
    return [row.split(" | ") for row in table[1:]]
