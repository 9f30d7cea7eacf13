"""The generated map of promises: form of a loop × strategy × kind of death, and the test of each.

Tests say what they prove by a marker, and this file collects the markers with pytest itself, so
that a test that is deleted, renamed or no longer collected proves nothing. mkdocs loads this file
as a hook (``mkdocs.yml``), and pytest as a plugin, in a process of its own.

A marker has words, and words in braces are values of the test's parameters::

    @pytest.mark.proves(form="epochs", strategy="{strategy}", death=("worker", "master"))
    @pytest.mark.refuses(form="accumulation", strategy=("fsdp", "ps bsp"))
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from paceline.wire.strategies import STRATEGIES

ROOT = Path(__file__).parents[2]
PAGE = "reference/promises.md"
FOUND_IN = "PACELINE_PROMISES"
"""Variable with the file for what pytest collects; the process that has it is the plugin's."""
MARKS = ("proves", "refuses")


class Form(NamedTuple):
    """A form of a loop."""

    title: str
    page: str = ""
    """The page in ``docs/`` that describes it; empty: none does."""


CANONICAL = {
    "batches": Form("`for batch in job.batches(...)`", "howto/loops.md#the-three-forms"),
    "epochs": Form("`for epoch in job.epochs(...)`", "loops/epochs.md"),
    "loader": Form("a prepared `DataLoader`", "howto/loops.md#the-three-forms"),
}
"""The forms that hold in each strategy."""
FORMS = CANONICAL | {
    "variables": Form("variables that the script does not declare", "loops/variables.md"),
    "next": Form("a loop by `next`", "loops/variables.md"),
    "left": Form("a loop that is left (`break`)", "loops/epochs.md"),
    "early": Form("early stopping by `job.agree`", "loops/early-stopping.md"),
    "agree": Form("`job.agree` in a body", "loops/early-stopping.md"),
    "gather": Form("`job.all_gather` and its like in a body", "loops/exchange.md"),
    "evaluation": Form("`job.evaluate` in a body", "loops/evaluation.md"),
    "logging": Form("`job.log`", "loops/logging.md"),
    "chief": Form("lines of `job.is_chief` behind a loop", "loops/variables.md"),
    "best": Form("the best weights, loaded at the end", "loops/best-weights.md"),
    "accumulation": Form("accumulation by hand", "loops/accumulation.md"),
    "skipped": Form("a step that is skipped", "loops/skipped-steps.md"),
    "turns": Form("two optimizers in turn", "loops/two-optimizers.md"),
    "some": Form("an optimizer that steps on some batches", "loops/some-batches.md"),
    "thawed": Form("layers thawed, groups added", "loops/thawed-layers.md"),
    "lbfgs": Form("LBFGS", "loops/closures.md"),
    "closure": Form("a closure with another optimizer", "loops/closures.md"),
    "compiled": Form("a compiled model", "loops/compiled.md"),
    "averages": Form("averages of weights"),
    "clipping": Form("`job.clip_grad_norm_`"),
    "scaler": Form("`GradScaler`"),
    "uneven": Form("a `batch_sampler` of several sizes"),
    "folds": Form("a model for each fold", "loops/folds.md"),
    "trainers": Form("Lightning, Hugging Face's Trainer"),
    "accelerate": Form("Accelerate"),
    "iterable": Form("an `IterableDataset`"),
    "stream": Form("a stream (`pl.StreamSource`)"),
    "torchrun": Form("a script written for torchrun"),
}
DEATHS = {
    "none": "nothing dies",
    "worker": "a worker is killed",
    "server": "a server is killed",
    "master": "the master is killed",
    "agent": "an agent is killed",
    "supervisor": "the supervisor is killed",
    "all": "all nodes, or all processes, are killed",
    "stop": "the job is stopped and resumed",
}
ENDS = {
    "equal": "the model, and what the script holds, are those of the undisturbed run",
    "counted": "each sample is in the model once for each epoch",
    "runs": "the loop comes to its end",
}
"""What a test compares, the strongest first."""
ALONE = "alone"
COLUMNS = (
    ALONE,
    *(
        f"{name} {mode}" if len(row.modes) > 1 else name
        for name, row in STRATEGIES.items()
        for mode in row.modes
    ),
)
"""The strategies, from their rows; with servers each mode is one."""
BY_OTHER_NAMES = {
    "ps": "ps bsp",
    "servers": "ps bsp",
    "deterministic": "allreduce",
    "replicas": "allreduce",
    "shards": "fsdp",
    "local": ALONE,
    "tables": ALONE,
}
"""Names of parameters in tests."""


def applies(form: str, column: str, death: str = "none") -> bool:
    """Tell whether a cell can be: a form of that strategy, a process that is there."""
    row = STRATEGIES.get(column.partition(" ")[0])
    if row is None:
        return form != "torchrun" and death == "none"
    return row.trains == (form != "torchrun") and (row.has_servers or death != "server")


class Said(NamedTuple):
    """What one test says of one cell; of a refusal the death is empty."""

    form: str
    column: str
    death: str
    ends: str
    """A word of `ENDS`; of a refusal empty."""
    test: str
    """File and function."""
    runs: str
    """Who runs it: ``CI``, ``soak``, or either with extras."""


# --------------------------------------------------------------------------- in pytest


def pytest_collection_finish(session: Any) -> None:
    """Write what the markers of the collected tests say."""
    if FOUND_IN in os.environ:
        found = {one for item in session.items for one in _said_by(item)}
        Path(os.environ[FOUND_IN]).write_text(json.dumps(sorted(found)))


def _said_by(item: Any) -> Iterator[Said]:
    values = item.callspec.params if hasattr(item, "callspec") else {}
    runs = "soak" if item.get_closest_marker("soak") else "CI"
    runs += ", with extras" if item.get_closest_marker("skipif") else ""
    test = item.nodeid.partition("[")[0]
    for name in MARKS:
        for mark in item.iter_markers(name):
            yield from said(name, mark.kwargs, values, test, runs)


def said(
    mark: str, words: Mapping[str, Any], values: Mapping[str, Any], test: str, runs: str
) -> Iterator[Said]:
    """Read one marker.

    Args:
        mark: ``proves`` or ``refuses``.
        words: arguments of the marker.
        values: parameters of the test.
        test: file and function.
        runs: who runs it.

    Raises:
        ValueError: a word that this file does not know, or a cell that cannot be.
    """
    deaths = words.get("death", "none") if mark == "proves" else ""
    ends = words.get("ends", "equal") if mark == "proves" else ""
    for form in _words(words["form"], values):
        for column in _words(words["strategy"], values):
            column = BY_OTHER_NAMES.get(column, column)
            for death in _words(deaths, values):
                known = form in FORMS and column in COLUMNS and death in ("", *DEATHS)
                if not (known and ends in ("", *ENDS) and applies(form, column, death or "none")):
                    raise ValueError(f"{test}: no cell {form}, {column}, {death} ({ends})")
                yield Said(form, column, death, ends, test, runs)


def _words(given: str | tuple[str, ...], values: Mapping[str, Any]) -> Iterator[str]:
    for word in (given,) if isinstance(given, str) else given:
        yield word.format_map(values)


# --------------------------------------------------------------------------- outside of it


@cache
def collected() -> tuple[Said, ...]:
    """Collect the markers of all tests; once for one state of the tests, since it takes seconds.

    Raises:
        RuntimeError: pytest cannot collect them; with what it says.
    """
    texts = {path: path.read_bytes() for path in sorted((ROOT / "tests").rglob("*.py"))}
    state = sha256(b"".join([*texts.values(), Path(__file__).read_bytes(), repr(COLUMNS).encode()]))
    found = ROOT / "build" / f"promises-{state.hexdigest()[:16]}.json"
    if not found.exists():
        marks = tuple(f"mark.{name}".encode() for name in MARKS)
        marked = [
            str(path.relative_to(ROOT))
            for path, text in texts.items()
            if path.name.startswith("test_") and any(mark in text for mark in marks)
        ]
        _collect(marked, found)
    return tuple(Said(*one) for one in json.loads(found.read_text()))


def _collect(files: list[str], into: Path) -> None:
    into.parent.mkdir(exist_ok=True)
    for old in into.parent.glob("promises-*.json"):
        old.unlink(missing_ok=True)
    out = into.with_suffix(f".{os.getpid()}")
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq"]
    plugins = ["-p", "no:randomly", "-p", "no:xdist", "-p", "promises"]
    env = os.environ | {FOUND_IN: str(out), "PYTHONPATH": here}
    done = subprocess.run(
        [*command, *plugins, *files], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"pytest cannot collect the promises:\n{done.stdout}{done.stderr}")
    out.replace(into)


def proofs(form: str, column: str, death: str | None = None) -> list[Said]:
    """List what proves a cell, or those of all deaths; the strongest first."""
    found = [
        one
        for one in collected()
        if (one.form, one.column) == (form, column) and one.death and death in (None, one.death)
    ]
    return sorted(found, key=lambda one: ([*ENDS].index(one.ends), one.runs, one.test))


def refusals(form: str, column: str) -> list[Said]:
    """List what refuses a form with a strategy."""
    return [one for one in collected() if (one.form, one.column, one.death) == (form, column, "")]


# --------------------------------------------------------------------------- the page


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page to the files of the site."""
    files.append(File.generated(config, PAGE, content=page()))
    return files


HEAD = """\
# What is proven

Tests say by a marker which cell of this map they prove, and this page is made of the markers that
pytest collects. A cell is a [form of a loop](../howto/loops.md), a strategy, and a kind of death.

| word | meaning |
|---|---|
| *equal* | {equal} |
| *counted* | {counted} |
| *runs* | {runs} |
| refused | the job ends with an error that names the remedy; a test checks it |
| unknown | no test checks it; it may hold |
| CI, soak | who runs the test: each change (`make test`), or the long suite (`make soak`) |
| with extras | the test runs where the library, or a GPU, is installed |
| alone | `python train.py` without `paceline run`: one process, which has nothing to restart |

Deaths: {deaths}.
"""


def page() -> str:
    """Write the page."""
    deaths = "; ".join(f"`{name}`: {what}" for name, what in DEATHS.items())
    parts = [HEAD.format(**ENDS, deaths=deaths), "## In short", "", *_overview()]
    for name in FORMS:
        parts += ["", *_section(name)]
    return "\n".join(parts) + "\n"


def _overview() -> Iterable[str]:
    """List each form with the deaths that are proven; equal ones first."""
    names = [_code(column) for column in COLUMNS]
    yield f"| form | {' | '.join(names)} |"
    yield "|---|" + "---|" * len(names)
    for name, form in FORMS.items():
        cells = (_short(name, column) for column in COLUMNS)
        yield f"| [{form.title}](#{_slug(name)}) | {' | '.join(cells)} |"


def _code(column: str) -> str:
    return column if column == ALONE else f"`{column}`"


def _slug(form: str) -> str:
    return f"form-{form}"


def _short(form: str, column: str) -> str:
    if not applies(form, column):
        return "-"
    if refusals(form, column):
        return "refused"
    best = {
        death: proofs(form, column, death)[0].ends
        for death in DEATHS
        if proofs(form, column, death)
    }
    groups = ((word, [death for death in best if best[death] == word]) for word in ENDS)
    return "; ".join(f"*{word}*: {', '.join(of)}" for word, of in groups if of) or "unknown"


def _section(name: str) -> Iterator[str]:
    form = FORMS[name]
    yield f"## {form.title} {{ #{_slug(name)} }}"
    yield ""
    if form.page:
        yield f"[How to write it](../{form.page})."
        yield ""
    yield "| strategy | death | result | test | run by |"
    yield "|---|---|---|---|---|"
    for column in COLUMNS:
        if applies(name, column):
            yield from _rows(name, column)


def _rows(form: str, column: str) -> Iterator[str]:
    if refused := refusals(form, column):
        yield from (
            f"| {_code(column)} | | refused | `{one.test}` | {one.runs} |" for one in refused
        )
        return
    unknown = []
    for death in DEATHS:
        if not applies(form, column, death):
            continue
        found = proofs(form, column, death)
        unknown += [] if found else [death]
        for one in found:
            yield f"| {_code(column)} | {death} | *{one.ends}* | `{one.test}` | {one.runs} |"
    if unknown:
        yield f"| {_code(column)} | {', '.join(unknown)} | unknown | | |"
