"""The map of promises has a test for each cell that it, or the documentation, calls proven."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from paceline.wire.strategies import STRATEGIES
from tests.pages import ROOT

pytestmark = pytest.mark.timeout(400)  # pytest collects other tests meanwhile
LOOPS = (ROOT / "docs" / "loops" / "index.md").read_text()
COLUMNS = {
    "alone": ("alone",),
    "all-reduce": ("allreduce",),
    "fsdp": ("fsdp",),
    "servers": ("ps bsp", "ps ssp", "ps asp"),
    "servers in bsp": ("ps bsp",),
    "servers in asp and ssp": ("ps ssp", "ps asp"),
}
"""What the lists of docs/loops/index.md call strategies."""


@pytest.fixture(scope="module")
def promises() -> Iterator[ModuleType]:
    path = ROOT / "docs" / "reference" / "promises.py"
    found = importlib.util.spec_from_file_location("promises", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["promises"] = module  # where a NamedTuple looks for its annotations
    found.loader.exec_module(module)
    yield module
    del sys.modules["promises"]


def test_each_form_and_each_strategy_has_a_row(promises: ModuleType) -> None:
    said = promises.collected()
    assert {one.form for one in said} == promises.FORMS.keys()
    assert {one.column for one in said} == set(promises.COLUMNS)
    assert {one.partition(" ")[0] for one in promises.COLUMNS} == {"alone", *STRATEGIES}


def test_the_three_forms_are_proven_with_each_strategy_when_a_worker_and_the_master_die(
    promises: ModuleType,
) -> None:
    for form in promises.CANONICAL:
        assert promises.proofs(form, "alone")
        for column in promises.COLUMNS:
            for death in ("worker", "master"):
                if promises.applies(form, column, death):
                    found = promises.proofs(form, column, death)
                    assert found, (form, column, death)
                    assert found[0].ends in ("equal", "counted"), (form, column, death)


def test_no_cell_is_proven_and_refused(promises: ModuleType) -> None:
    said = promises.collected()
    proven = {(one.form, one.column) for one in said if one.death}
    refused = {(one.form, one.column) for one in said if not one.death}
    assert proven & refused == set()


def rows_of(title: str) -> Iterator[tuple[str, str]]:
    """Yield the first two cells of the table under a heading, without links and code."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", LOOPS, re.MULTILINE | re.DOTALL)
    for row in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)[1:]:
        plain = re.sub(r"\]\([^)]*\)|[\[`]", "", row)
        form, where, *_ = plain.split(" | ")
        yield form, where


def cells_of(title: str, promises: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield the cells that a table claims: form and strategy."""
    for told, where in rows_of(title):
        forms = [
            name for name, form in promises.FORMS.items() if form.title.replace("`", "") in told
        ]
        assert forms, f"no form of the map: {told}"
        words = where.partition(";")[0].replace("with ", "").split(", ")
        assert words, told
        yield from ((form, column) for form in forms for word in words for column in COLUMNS[word])


def test_what_the_page_on_loops_says_to_work_is_proven(promises: ModuleType) -> None:
    cells = [*cells_of("Other forms that work", promises)]
    assert len(cells) >= 40
    assert [cell for cell in cells if not promises.proofs(*cell)] == []


def test_what_the_page_on_loops_says_to_be_refused_is_refused(promises: ModuleType) -> None:
    cells = [*cells_of("Refused forms", promises)]
    assert len(cells) >= 40
    assert [cell for cell in cells if not promises.refusals(*cell)] == []


def test_what_is_refused_stands_on_the_page_on_loops(promises: ModuleType) -> None:
    told = {*cells_of("Refused forms", promises)}
    refused = {(one.form, one.column) for one in promises.collected() if not one.death}
    assert refused - told == {("stream", "ps bsp")}, "streams have a page of their own"


@pytest.mark.parametrize(
    "wrong",
    [
        {"form": "comprehension", "strategy": "allreduce"},
        {"form": "batches", "strategy": "horovod"},
        {"form": "batches", "strategy": "fsdp", "death": "server"},
        {"form": "batches", "strategy": "fsdp", "ends": "nearly"},
        {"form": "batches", "strategy": "alone", "death": "worker"},
        {"form": "torchrun", "strategy": "ps bsp"},
    ],
)
def test_a_cell_that_cannot_be_is_refused(wrong: dict[str, str], promises: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"a_test: no cell"):
        list(promises.said("proves", wrong, {}, "a_test", "CI"))


def test_a_cell_without_a_test_is_unknown_and_not_proven(
    promises: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one, *_) = promises.said(
        "proves", {"form": "{form}", "strategy": "shards"}, {"form": "epochs"}, "a_test", "soak"
    )
    monkeypatch.setattr(promises, "collected", lambda: (one,))
    text = promises.page()
    assert "| `fsdp` | none | *equal* | `a_test` | soak |" in text
    assert "| `fsdp` | worker, master, agent, supervisor, all, stop | unknown | | |" in text
    assert text.count("`a_test`") == 1
