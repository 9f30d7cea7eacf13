"""Default strategy of a job, decided from its settings and its script.

With all-reduce a script may do almost all that it does alone, so it is the default. Sparse tables
need servers. They are looked for in the script's text, before anything runs: the nodes of a job
must be known when it starts. If the text does not show a table, `job.prepare` refuses it under
all-reduce, and names the remedy.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from paceline.jobs.flags import OF_SPEC, flag_of
from paceline.jobs.script_text import sources_of
from paceline.jobs.spec_draft import SpecDraft
from paceline.wire.strategies import Strategy

SERVERS: Strategy = "ps"
OTHERWISE: Strategy = "allreduce"
_TABLES = ("Embedding", "EmbeddingBag")
_TABLE_OPTIMIZER = "SparseAdam"


def choose_strategy(draft: SpecDraft) -> None:
    """Put a strategy into a draft that has none; its place says why."""
    if "strategy" in draft.places or not draft.is_sound(["strategy"]):
        return
    chosen, why = _chosen(draft)
    draft.values["strategy"], draft.places["strategy"] = chosen, why


def _chosen(draft: SpecDraft) -> tuple[Strategy, str]:
    for key in draft.places:
        if key.startswith("servers.") or key == "resources.servers":
            return SERVERS, f"since {_named(draft, key)} is given"
    if "mode" in draft.places:
        return SERVERS, f"since mode {draft.get('mode')} is given"
    if draft.get("samples") != "exactly-once":
        return SERVERS, f"since samples is {draft.get('samples')}"
    script = str(draft.get("script"))
    folder = Path(str(draft.get("cwd") or Path.cwd()))
    if draft.get("run_as") == "module":
        script = Path(script).name  # read like a path so far
    if place := find_table(script, folder):
        return SERVERS, f"since {place} makes a sparse table"
    return OTHERWISE, f"since {Path(script).name} has no sparse tables"


def _named(draft: SpecDraft, key: str) -> str:
    short = key.removesuffix(".count")
    return flag_of(short) if draft.places[key].startswith("--") and short in OF_SPEC else key


def find_table(script: str, folder: Path) -> str:
    """Find the first sparse table that the text of a script seems to make.

    Args:
        script: a file, or a module.
        folder: where it runs.

    Returns:
        File and line; empty: there is none.
    """
    for path, text in sources_of(script, folder):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            continue  # a script that Python cannot read says so itself
        lines = sorted(_table_lines(tree))
        if lines:
            return f"{path.name}:{lines[0]}"
    return ""


def _table_lines(tree: ast.Module) -> Iterator[int]:
    names = set(_names_of_paceline(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call() if _is_sparse(node):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id=owner), attr="Embedding") if owner in names:
                yield node.lineno
            case ast.ImportFrom(module="paceline", names=imported):
                if any(one.name == "Embedding" for one in imported):
                    yield node.lineno
            case ast.Attribute(attr=name) | ast.Name(id=name) if name == _TABLE_OPTIMIZER:
                yield node.lineno
            case _:
                continue


def _names_of_paceline(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.asname or one.name for one in node.names if one.name == "paceline")


def _is_sparse(call: ast.Call) -> bool:
    """True: the call asks for ``sparse=True``, or says of an embedding what only a run decides."""
    values = [word.value for word in call.keywords if word.arg == "sparse"]
    if not values:
        return False
    if isinstance(values[0], ast.Constant):
        return values[0].value is True
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = call.func.id if isinstance(call.func, ast.Name) else name
    return name.endswith(_TABLES) or name == "from_pretrained"
