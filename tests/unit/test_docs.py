"""The documentation names only what exists: modules, commands, options, keys, links of README."""

import ast
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from markdown.extensions.toc import slugify

from paceline.cli.main import app
from paceline.jobs.spec_values import FREE_SECTIONS, LEAVES
from paceline.wire.events.lines import KINDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "paceline"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
FAILURES = (ROOT / "docs" / "failure-model.md").read_text()
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_")
OF_USERS = {
    "train.py",
    "mine.py",
    "convnet.py",
    "leveling/leveling.py",
    "sitecustomize.py",
    "setup.py",
}
"""Files that examples in the documentation give to their reader."""
OPTIONS_OF_SCRIPTS = {"--lr"}
NO_COMMANDS = {"as", "torchrun"}
"""`import paceline as pl`; a command that decision 15 did not take."""
NO_MODULES = {"paceline.resources", "paceline.schedulers", "paceline.sinks", "paceline.solutions"}
"""Dotted names that look like modules: the groups of entry points."""


BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@cache
def sources() -> frozenset[str]:
    """Every file of Python that the documentation may name."""
    folders = ("src/paceline", "tests", "experiments", "examples", "docs/reference")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return frozenset(f"/{path.relative_to(ROOT)}" for path in found)


def code_of(page: Path) -> Iterator[str]:
    """Yield the code of a page: spans, and lines of blocks."""
    text = page.read_text()
    for block in BLOCK.findall(text):
        yield from block.splitlines()[1:-1]
    for block in re.findall(r"(?:^ {4,}\S.*\n)+", text, re.MULTILINE):
        yield from block.splitlines()
    for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        yield " ".join(span.split())


def spread(path: str) -> Iterator[str]:
    """Yield the paths that ``a/{b,c}`` stands for."""
    head, brace, rest = path.partition("{")
    if not brace:
        yield path
        return
    inner, _, tail = rest.partition("}")
    for word in inner.split(","):
        yield from spread(f"{head}{word.strip()}{tail}")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_file_of_python_that_a_page_names_exists(page: Path) -> None:
    named = {
        path
        for code in code_of(page)
        for word in re.findall(r"(?<![\w./*-])[\w./{},-]+\.py\b", code)
        for path in spread(word)
    }
    missing = {
        path
        for path in named - OF_USERS
        if not any(source.endswith(f"/{path}") for source in sources())
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_folder_of_the_package_that_a_page_names_exists(page: Path) -> None:
    start = "|".join(FOLDERS)
    named = {
        path
        for code in code_of(page)
        for word in re.findall(rf"(?<![\w./-])(?:{start})/[\w/{{}},]*(?![\w.*])", code)
        for path in spread(word)
    }
    assert {path for path in named if not (PACKAGE / path).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_dotted_name_of_the_package_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?<![\w./])paceline(?:\.[A-Za-z_]\w*)+", text)) - NO_MODULES
    assert {name for name in named if not is_name(name)} == set()


def is_name(dotted: str) -> bool:
    """Tell whether a module has the name, or defines or exports its last part."""
    path = PACKAGE.joinpath(*dotted.split(".")[1:])
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    parent = path.parent
    files = [parent.with_suffix(".py"), parent / "__init__.py"]
    return any(path.name in file.read_text() for file in files if file.exists())


@pytest.mark.parametrize(
    "page", ["architecture.md", "where-to-look.md", "glossary.md", "failure-model.md"]
)
def test_every_class_that_a_page_on_the_code_names_exists(page: str) -> None:
    defined = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    }
    spans = re.findall(r"`([^`]+)`", BLOCK.sub("", (ROOT / "docs" / page).read_text()))
    named = {span.partition(".")[0] for span in spans if re.fullmatch(r"[A-Z]\w*[a-z][\w.]*", span)}
    assert named - defined == set()


@cache
def commands() -> dict[str, Any]:
    """Every command by its words: ``run``, ``checkpoint``, ``checkpoint ls``, ..."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: list[str]) -> None:
        found[" ".join(words)] = command
        for name, child in getattr(command, "commands", {}).items():
            walk(child, [*words, name])

    walk(typer.main.get_command(app), [])
    return found


def calls_in(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each call of ``paceline`` in the code of a page: its words as typed, and its options."""
    for code in code_of(page):
        for call in re.findall(r"(?<![\w./'-])paceline ([a-z][^#|;&]*)", code):
            ours = call.partition(" -- ")[0]
            words = re.findall(r"^[a-z][\w-]*(?: [a-z][\w-]*)?", ours)[0]
            if words.split()[0] not in NO_COMMANDS:
                yield words, re.findall(r"(?<![\w-])--[a-z][\w-]*", ours)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_that_a_page_calls_exists_with_its_options(page: Path) -> None:
    wrong = []
    for words, options in calls_in(page):
        verb, _, second = words.partition(" ")
        command = commands().get(verb)
        if command is not None and hasattr(command, "commands") and second:
            verb, command = words, commands().get(words)
        if command is None:
            wrong.append(words)
            continue
        taken = [command] if verb != "submit" else [command, commands()["run"]]  # it passes them on
        params = [param for one in taken for param in one.params]
        known = {name for param in params for name in param.opts + param.secondary_opts}
        known |= OPTIONS_OF_SCRIPTS
        wrong += [f"{verb} {name}" for name in options if name not in known]
    assert wrong == []


def test_a_word_of_the_glossary_has_one_meaning_and_a_module() -> None:
    rows = re.findall(r"^\| (?!word )([^|]+) \| ([^|]+) \| ([^|]+) \|$", GLOSSARY, re.MULTILINE)
    words = [word for cell, _, _ in rows for word in cell.split(", ")]
    assert len(words) >= 80
    assert len(set(words)) == len(words)
    assert all(re.search(r"`[a-z_/]+(?:/|\.py)`", where) for _, _, where in rows)


def test_a_timeout_of_the_failure_model_has_the_name_and_the_module_that_the_source_has() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", FAILURES, re.MULTILINE)
    found = 0
    for _, names, modules in rows:
        for name in re.findall(r"`([A-Z_]+)`", names):
            for module in re.findall(r"`([a-z_/]+\.py)`", modules):
                text = (PACKAGE / module).read_text()
                assert re.search(rf"^(?:\w+, )?{name}\b", text, re.MULTILINE), (name, module)
                found += 1
    assert found >= 40


README_OF_FEATURES = sorted((PACKAGE / "features").glob("*/README.md"))


@pytest.mark.parametrize("page", README_OF_FEATURES, ids=lambda page: page.parent.name)
def test_the_page_of_a_feature_says_which_file_to_read_first(page: Path) -> None:
    (first,) = re.findall(r"^Read `([\w/]+\.py)` first", page.read_text(), re.MULTILINE)
    assert (page.parent / first).exists()


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", (ROOT / "README.md").read_text())
    assert len(links) >= 5
    for target, anchor in links:
        page = ROOT / target
        assert page.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
            assert anchor in {slugify(title, "-") for title in titles}, f"{target}#{anchor}"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    path = ROOT / "docs" / "reference" / "pages.py"
    found = importlib.util.spec_from_file_location("reference_pages", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_reference_has_every_key_of_the_spec(reference: ModuleType) -> None:
    text = reference.spec_keys()
    for key in [*LEAVES, *(f"{section}.NAME" for section in FREE_SECTIONS)]:
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{key}`")]
        assert len(row.split(" | ")) == 4 and not row.endswith("|  |"), row


def test_the_reference_has_every_command(reference: ModuleType) -> None:
    titles = re.findall(r"^#+ paceline (.+)$", reference.commands(), re.MULTILINE)
    assert titles == [words for words in commands() if words]


def test_the_reference_has_every_event(reference: ModuleType) -> None:
    text = reference.events()
    told = [kind.__struct_config__.tag for kind in KINDS]
    for path in sorted((PACKAGE / "features").rglob("*.py")):
        told += events_in(path)
    assert {"slowed", "sharing", "size_changed", "history_unusable", "solution_failed"} <= {*told}
    for name in told:
        rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(rows) == 1, name


def events_in(path: Path) -> list[str]:
    """Read the names of a feature's events from its source, without importing it."""
    bases, found = {"FeatureEvent"}, []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and bases & {ast.unparse(one) for one in node.bases}:
            bases.add(node.name)
            if not node.name.startswith("_"):
                words = re.findall(r"[A-Z][^A-Z]*", node.name.removesuffix("Event"))
                found.append("_".join(words).lower())
    return found


def test_the_page_of_the_package_has_no_link_into_the_repository() -> None:
    """As installed: the README's words are there, and links that lead nowhere are not."""
    page = importlib.metadata.metadata("paceline").json["description"]
    assert "paceline run train.py --workers 4" in page
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)", page) == []
