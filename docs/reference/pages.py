"""The generated pages of the reference: public names, keys of the job spec, commands.

mkdocs loads this file as a hook (``mkdocs.yml``). Nothing here is a list kept by hand: a name, a
key or a command that is added or removed is added to or removed from the site by its next build.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NewType, get_args, get_origin

import msgspec
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import paceline
from paceline.base.features import OWN, Feature, installed
from paceline.cli.main import app
from paceline.jobs.field_docs import field_docs
from paceline.jobs.flags import DEFAULTS, flag_of
from paceline.jobs.spec_values import FREE_SECTIONS, LEAVES, show
from paceline.wire import spec
from paceline.wire.events.base import Event, FeatureEvent
from paceline.wire.events.lines import KINDS
from paceline.wire.strategies import STRATEGIES, Traits

CHOSEN = {"strategy": DEFAULTS["strategy"]}
"""Defaults that are no fixed value, by key."""
DECISIONS = Path(__file__).parents[1] / "decisions"
SOLUTION_MODULES = (
    "paceline.features.stragglers.policy.solution",
    "paceline.policy.observation",
    "paceline.policy.actions",
)
"""What the author of a solution imports."""
ADAPTERS = (
    "paceline.runtime.integrations.huggingface.Trainer",
    "paceline.runtime.integrations.accelerate.Accelerator",
    "paceline.runtime.integrations.lightning.PacelineStrategy",
)
"""Where the names of ``paceline.huggingface`` and ``paceline.lightning`` are defined."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages to the files of the site."""
    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files


def api() -> str:
    """Write the page of the public names; mkdocstrings fills in their docstrings."""
    names = [name for name in paceline.__all__ if not name.startswith("__")]
    homes = [f"{getattr(paceline, name).__module__}.{name}" for name in names]
    parts = ["# Python", "", "`import paceline as pl`: what a script uses.", ""]
    parts += _directives(homes, level=2)
    parts += ["## Adapters", "", "Names of `paceline.huggingface` and `paceline.lightning`.", ""]
    parts += _directives(ADAPTERS, level=3)
    seen = "What a [solution](../howto/write-a-solution.md) sees, and what it may answer."
    parts += ["## Solutions", "", seen, ""]
    parts += _directives(SOLUTION_MODULES, level=3)
    return "\n".join(parts)


def _directives(names: tuple[str, ...] | list[str], level: int) -> list[str]:
    return [f"::: {name}\n    options:\n      heading_level: {level}\n" for name in names]


def spec_keys() -> str:
    """Write the page of all keys of a job spec, from the fields and their docstrings."""
    head = (
        "# The job spec\n\n"
        "Every key may stand in a YAML file, or be set with `--set KEY=VALUE`; the keys with a "
        "flag of their own name it. `paceline run job.yaml --dry-run` prints the value of each "
        "key and where it comes from. Sizes are written as `512MiB`, durations as `30s` or `5m`.\n"
    )
    sections = list(_sections(spec.JobSpec))
    tables = [_table_of(struct, prefix) for prefix, struct in sections]
    return head + "\n".join(tables)


def _sections(struct: type[msgspec.Struct]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the spec and each section in it, with the prefix of its keys."""
    yield "", struct
    for field in msgspec.structs.fields(struct):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield f"{field.encode_name}.", field.type


def _table_of(struct: type[msgspec.Struct], prefix: str) -> str:
    title = prefix.removesuffix(".") or "Top level"
    notes = field_docs(struct)
    lines = [f"\n## {title}\n", _cell(inspect.getdoc(struct) or ""), ""]
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(struct):
        key = prefix + field.encode_name
        if key in LEAVES or key in FREE_SECTIONS:
            lines.append(f"| {' | '.join(_cell(part) for part in _row(key, notes[field.name]))} |")
    return "\n".join(lines) + "\n"


def _row(key: str, note: str) -> tuple[str, str, str, str]:
    if key in FREE_SECTIONS:
        return f"`{key}.NAME`", "text", "none", note
    leaf = LEAVES[key]
    flag = flag_of(key)
    named = f"`{key}`" if flag.startswith("--set ") else f"`{key}` (`{flag}`)"
    if leaf.default is msgspec.NODEFAULT:
        return named, leaf.expected, "required", note
    # The writer of sizes knows those of nodes by their key.
    is_size = leaf.expected.startswith("a size")
    shown = show("workers.memory" if is_size else key, leaf.default)
    return named, leaf.expected, CHOSEN.get(key, f"`{shown}`"), note


def _cell(text: str) -> str:
    """Put a text into one line, so that it may be a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("``", "`")


def commands() -> str:
    """Write the page of all commands, with their arguments and options."""
    command = typer.main.get_command(app)
    return "# The command line\n\n" + "\n".join(_commands(command, "paceline"))


def _commands(command: Any, path: str) -> Iterator[str]:
    """Describe a command and, of a group, each of its commands in turn."""
    children = getattr(command, "commands", {})
    depth = path.count(" ")
    if depth:
        yield f"{'#' * (depth + 1)} {path}\n"
    yield _described(command, path, is_group=bool(children))
    for name, child in children.items():
        if not child.hidden:
            yield from _commands(child, f"{path} {name}")


def _described(command: Any, path: str, *, is_group: bool) -> str:
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option"]
    words = [path, *(["COMMAND"] if is_group else []), *(["[OPTIONS]"] if options else [])]
    words += [_metavar(param) for param in arguments]
    lines = [inspect.cleandoc(command.help or ""), "", "```", " ".join(words), "```", ""]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_metavar(param)}` | {_cell(param.help or '')} |" for param in arguments]
        lines.append("")
    if options:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        lines += [_option_row(param) for param in options] + [""]
    if command.epilog:
        lines += ["", *(f"- {line}" for line in command.epilog.split("\n\n")), ""]
    return "\n".join(lines)


def _metavar(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return word if param.required else f"[{word}]"


def _option_row(param: Any) -> str:
    value = "" if param.is_flag else f" {_cell(param.metavar or param.name.upper())}"
    names = ", ".join([*param.opts, *param.secondary_opts]) + value
    meaning, _, said = (param.help or "").partition(" Default: ")
    shown = "" if param.default in (None, False, [], ()) else f"`{param.default}`"
    shown = said.removesuffix(".") or shown
    return f"| `{names}` | {_cell(shown)} | {_cell(meaning)} |"


def strategies() -> str:
    """Write the page of strategies: what the row of each says."""
    names = list(STRATEGIES)
    notes = field_docs(Traits)
    lines = ["# Strategies", "", "`strategy` of a job spec: what each allows.", ""]
    lines += [f"- `{name}`: {STRATEGIES[name].summary}" for name in names]
    lines += ["", f"| trait | {' | '.join(f'`{name}`' for name in names)} | meaning |"]
    lines.append("|---|" + "---|" * (len(names) + 1))
    for field in Traits.__struct_fields__:
        if field != "summary":
            cells = [_shown(getattr(STRATEGIES[name], field)) for name in names]
            lines.append(f"| `{field}` | {' | '.join(cells)} | {_cell(notes[field])} |")
    return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return _cell(str(value))


EVENTS_HEAD = """\
# Events

Each line of `events.jsonl` in the folder of a job is a JSON object: something has changed.
Programs read its fields, and people its `reason`. A field that has its default is left out.
`paceline.wire.events.lines.decode_events` reads the lines of all versions. A line of a feature has
its name (`feature`) and a sentence (`words`), too, for readers that do not have the feature.

*Usual* says whether every healthy job has such an event. People who watch a job see all others.
"""


def events() -> str:
    """Write the page of all events, by topic, with the fields of each."""
    lines = [EVENTS_HEAD, "| field of all events | meaning |", "|---|---|"]
    lines.append("| `event` (str) | The name of the event. |")
    lines += [f"| {field} | {note} |" for field, note in _event_fields(Event)]
    lines.append(
        "| `reason` (str) | What has happened, in words; left out where `event` says all. |"
    )
    topic = ""
    for title, kind in (*_events_of_core(), *_events_of_features()):
        if title != topic:
            topic = title
            lines += ["", f"## {title}", ""]
            lines += ["| event | what has happened | usual | fields |", "|---|---|---|---|"]
        usual = "the first" if "is_news" in vars(kind) else _shown(kind.is_usual)
        own = _event_fields(kind, known=Event.__struct_fields__)
        fields = "<br>".join(" ".join(filter(None, (f"{field}.", note))) for field, note in own)
        name = kind.__struct_config__.tag
        lines.append(f"| `{name}` | {_cell(inspect.getdoc(kind) or '')} | {usual} | {fields} |")
    return "\n".join(lines)


def _events_of_core() -> Iterator[tuple[str, type[Event]]]:
    """Yield each event that the core tells, with its topic: what its module says of itself."""
    for kind in KINDS:
        title = (inspect.getdoc(inspect.getmodule(kind)) or "").partition("\n")[0]
        yield title.removesuffix("."), kind


def _events_of_features() -> Iterator[tuple[str, type[FeatureEvent]]]:
    """Yield each event that an own feature tells, by feature, with the feature as its topic."""
    own = [one.feature for one in installed() if one.feature is not None and one.package == OWN]
    for feature in own:
        _load(feature)
    known = sorted(
        (one for one in _derived(FeatureEvent) if one.__module__.startswith(f"{OWN}.features.")),
        key=lambda kind: (kind.__module__, inspect.getsourcelines(kind)[1]),
    )
    for feature in own:
        for kind in known:
            if kind.feature_name == feature.name:
                yield f"Feature `{feature.name}`: {feature.about}", kind


def _load(feature: Feature) -> None:
    """Import the parts that a feature declares, and with them its events."""
    for place in feature._asdict().values():
        if isinstance(place, str) and place.startswith(f"{OWN}.") and ":" in place:
            pkgutil.resolve_name(place)


def _derived(base: type[FeatureEvent]) -> Iterator[type[FeatureEvent]]:
    """Yield all kinds of events below a base; a name with an underscore is a base only."""
    for kind in base.__subclasses__():
        if not kind.__name__.startswith("_"):
            yield kind
        yield from _derived(kind)


def _event_fields(
    kind: type[msgspec.Struct], known: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the fields of an event, with their types, and what is said of them."""
    notes: dict[str, str] = {}
    for base in kind.__mro__[kind.__mro__.index(msgspec.Struct) - 1 :: -1]:
        notes |= field_docs(base)
    for field in msgspec.structs.fields(kind):
        if field.name not in known and field.name != "reason":
            note = notes[field.name]
            said = "" if note == field.name else _cell(note)
            yield f"`{field.name}` ({_type_name(field.type)})", said


def _type_name(kind: Any) -> str:
    """Name a type as JSON's reader sees it: ``int``, ``"share" or "answer"``, ``str, several``."""
    args = [one for one in get_args(kind) if one is not type(None)]
    if get_origin(kind) is Literal:
        return " or ".join(f'"{word}"' for word in args)
    if get_origin(kind) is tuple:
        return f"{_type_name(args[0])}, several"
    if args:
        return _type_name(args[0])
    if isinstance(kind, NewType):  # a number by its meaning, as `Inc`
        return _type_name(kind.__supertype__)
    if issubclass(kind, StrEnum):
        return " or ".join(f'"{word}"' for word in kind)
    return str(kind.__name__)


def decisions() -> str:
    """Write the list of decisions, each with the title of its page."""
    lines = ["# Decisions", "", "What was decided about the design, and why.", ""]
    for page in sorted(DECISIONS.glob("[0-9]*.md")):
        title = page.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title.replace('. ', ' · ', 1)}]({page.name})")
    return "\n".join(lines)


PAGES: dict[str, Callable[[], str]] = {
    "reference/api.md": api,
    "reference/spec.md": spec_keys,
    "reference/cli.md": commands,
    "reference/strategies.md": strategies,
    "reference/events.md": events,
    "decisions/index.md": decisions,
}
