"""The blocks of code in the documentation's pages.

A block says what it is by the word after its fence: ``python``, ``sh`` (commands), ``text`` (what a
command prints, or a drawing), ``diff``, ``yaml``, ``toml``, ``ini``. If a block of commands or of
Python cannot be checked, the line before it is ``<!-- not run: REASON -->``.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r'title="([^"]+)"')
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\n *\Z")
ENDS_OF_COMMANDS = {";", "|", "||", "&", "&&", ">", ">>"}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    """The file that the reader is to save it as; empty: none."""
    body: str
    not_run: str
    """Why it cannot be checked; empty: it is."""

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each command in it, without comments, redirections and ``NAME=VALUE``."""
        for line in self.body.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if word not in ENDS_OF_COMMANDS:
                    words.append(word)
                    continue
                while words and re.match(r"[A-Z_]+=", words[0]):
                    del words[0]
                if words:
                    yield words
                words = []
                if word.startswith(">"):
                    break


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in FENCED.finditer(text):
        indent, info, body = match.groups()
        title, reason = TITLE.search(info), NOT_RUN.search(text[: match.start()])
        found.append(
            Block(
                page=page,
                line=text[: match.start()].count("\n") + 1,
                language=info.split(" ")[0],
                title=title[1] if title else "",
                body=re.sub(rf"^{indent}", "", body, flags=re.MULTILINE),
                not_run=reason[1] if reason else "",
            )
        )
    return found
