"""Way from defaults, a YAML file and flags to one ``JobSpec``; mistakes are found before a start.

Owns the order (defaults < file < flags), the places of values, the checks that compare values, and
the wording of complaints. What a single value looks like is in ``paceline.jobs.spec_values``.
"""

import ipaddress
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import yaml
from yaml.error import Mark
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.resolver import Resolver

from paceline.base.backends import DEFAULT, backend_kind, installed
from paceline.base.errors import ConfigError
from paceline.base.features import call_parts, parts_of, say_failed
from paceline.cuts.remote import RemoteCuts
from paceline.jobs.default_strategy import choose_strategy
from paceline.jobs.flags import OF_SPEC, SHORT, flag_of
from paceline.jobs.modules import module_fault
from paceline.jobs.spec_draft import (
    COMMAND_LINE,
    SpecDraft,
    complaint,
    how_to_write,
    keys_of,
    traits_of,
    where,
)
from paceline.jobs.spec_values import (
    FREE_SECTIONS,
    LEAVES,
    describe,
    show,
)
from paceline.jobs.surroundings import OF_TORCHRUN
from paceline.jobs.targets import SPECS, near_script, target_fault
from paceline.jobs.tickets import is_address
from paceline.wire.spec import SHORT_STEPS, JobSpec
from paceline.wire.strategies import Traits, those

MIN_MEMORY_BYTES = MappingProxyType({"workers": 256 * 2**20, "servers": 128 * 2**20})
"""Below this a node dies before its first step: importing torch takes a worker 217 MiB (measured),
numpy, numba and zmq take a server 90 MiB."""

_CHOSEN = frozenset({"MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "TORCHELASTIC_RUN_ID"})
"""Variables of torchrun that the user may set with strategy script."""
_SECTIONS = {key.rpartition(".")[0] for key in LEAVES} - {""} | {*FREE_SECTIONS}
_ROOT = "expected keys and values; write e.g. script: train.py"


def _read_mapping(draft: SpecDraft, file: Path, node: MappingNode, prefix: str = "") -> None:
    first_lines: dict[str, int] = {}
    for key_node, value in node.value:
        line = key_node.start_mark.line + 1
        name = _key_text(key_node)
        place, key = f"{file}:{line}", f"{prefix}{name}"
        if key in first_lines:
            again = f"this key again (first on line {first_lines[key]})"
            draft.complaints.append(
                complaint(place, key, again, "it once", "remove one of the lines")
            )
            continue
        first_lines[key] = line
        if "." in name and prefix.rstrip(".") not in FREE_SECTIONS:
            # One way to write a key, or a repeated key could hide in two spellings.
            remedy = "write each part on its own level"
            draft.complaints.append(complaint(place, key, "a dotted key", "a single name", remedy))
        else:
            _read_entry(draft, file, place, key, value)


def _read_entry(draft: SpecDraft, file: Path, place: str, key: str, value: Node) -> None:
    if key not in _SECTIONS:
        draft.put(key, place, value, file.parent)
    elif isinstance(value, MappingNode):
        _read_mapping(draft, file, value, f"{key}.")
    elif key in SHORT and isinstance(value, ScalarNode):
        draft.put(SHORT[key], place, value, file.parent, label=key)
    else:
        known = ", ".join(keys_of(key)) or "NAME: value"
        draft.complaints.append(
            complaint(
                place, key, describe(value), f"a mapping of {known}", "indent its keys under it"
            )
        )


def _key_text(node: Node) -> str:
    """Take the name of a key; one that a terminal could not show is none of ours anyway."""
    if not isinstance(node, ScalarNode):
        return describe(node)
    return str(node.value) if node.value.isprintable() else ascii(node.value)


def _read_file(draft: SpecDraft, file: Path) -> None:
    try:
        root = yaml.compose(file.read_bytes().decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(_unreadable(file, error)) from error
    if root is None:
        raise ConfigError(f"{file}: got an empty file, {_ROOT}")
    if not isinstance(root, MappingNode):
        raise ConfigError(f"{file}:{root.start_mark.line + 1}: got {describe(root)}, {_ROOT}")
    _read_mapping(draft, file, root)


def _unreadable(file: Path, error: Exception) -> str:
    match error:
        case FileNotFoundError():
            near = near_script(file)
            remedy = f"did you mean {near}?" if near else "check the path"
            return f"{file}: got no such file, expected a job spec; {remedy}"
        case OSError():
            return f"{file}: got {error.strerror}, expected a readable job spec; check the path"
        case UnicodeDecodeError():
            line = error.object[: error.start].count(b"\n") + 1
            return f"{file}:{line}: got bytes that are no UTF-8, expected text; save it as UTF-8"
        case yaml.MarkedYAMLError(problem_mark=Mark() as mark):
            at = f"{file}:{mark.line + 1}: got broken YAML at column {mark.column + 1}"
            return f"{at} ({error.problem}), expected key: value lines; check indent and quotes"
        case RecursionError():
            return f"{file}: got brackets nested without end, {_ROOT}"
        case _:
            return f"{file}: got broken YAML ({error}), {_ROOT}"


def _read_flags(draft: SpecDraft, flags: Mapping[str, str]) -> None:
    resolver: Any = Resolver()  # untyped in the stubs of yaml
    for flag_key, text in flags.items():
        key, place = SHORT.get(flag_key, flag_key), flag_of(flag_key)
        # As in a file: `--set checkpoint.dir=null` takes a value back to none.
        tag = resolver.resolve(ScalarNode, text, (True, False))
        if flag_key in {"script", "args"}:
            remedy = "write e.g. paceline run train.py -- --lr 0.1"
            draft.complaints.append(complaint(place, key, repr(text), "no such flag", remedy))
        elif key in _SECTIONS:
            inner = f"{key}.{next(iter(keys_of(key)), 'NAME')}"
            remedy = f"write e.g. {flag_of(inner)}=..."
            draft.complaints.append(complaint(place, key, repr(text), "one key of it", remedy))
        else:
            draft.put(key, place, ScalarNode(tag, text), Path.cwd(), label=flag_key)


def _word_node(text: str) -> ScalarNode:
    return ScalarNode("tag:yaml.org,2002:str", text)


def _check_script(draft: SpecDraft) -> None:
    key, path = "script", Path(str(draft.get("script")))
    if key not in draft.places:
        draft.complain(key, "nothing", "the Python file to run", "write e.g. script: train.py")
    elif draft.get("run_as") == "module":
        # Read like a path; it is looked for where the script will run.
        draft.values[key] = path.name
        if fault := module_fault(path.name, str(draft.get("cwd") or Path.cwd())):
            expected = "a module that Python finds from the folder that the script runs in"
            remedy = "check the name and the folder"
            if path.suffix == ".py":
                remedy = f"leave -m out, or write -m {path.stem}"
            draft.complain(key, f"{path.name!r}, {fault}", expected, remedy)
    elif draft.get("run_as") == "program":
        _find_program(draft, path)
    elif path.is_dir():
        draft.complain(key, f"the directory {path}", "a Python file", "name the file in it")
    elif not path.is_file():
        near = near_script(path)
        remedy = f"did you mean {Path(near).name}?" if near else "check the path"
        draft.complain(key, f"{str(path)!r}, no such file", "a Python file", remedy)
    elif not os.access(path, os.R_OK):
        draft.complain(key, f"{str(path)!r}, unreadable", "a Python file", "allow reading it")


def _find_program(draft: SpecDraft, path: Path) -> None:
    found = shutil.which(path) or shutil.which(path.name)
    if found is None:
        remedy = "leave --no-python out" if path.suffix == ".py" else "check the path"
        draft.complain("script", f"{path.name!r}, no such program", "one to run", remedy)
    else:
        draft.values["script"] = os.path.abspath(found)


def _check_mode(draft: SpecDraft) -> None:
    mode, samples = draft.get("mode"), draft.get("samples")
    if mode != "ssp" and "staleness" in draft.places:
        got = f"{draft.get('staleness')} in mode {mode}, where it has no effect"
        draft.complain("staleness", got, "it with mode ssp only", "remove it or set mode to ssp")
    if mode != "bsp" and draft.get("checkpoint.every_steps") is not None:
        got = f"{draft.get('checkpoint.every_steps')} in mode {mode}, where there is no common step"
        draft.complain("checkpoint.every_steps", got, "it in mode bsp only", "write every_s: 30s")
    if mode == "bsp" and samples != "exactly-once":
        draft.complain(
            "samples",
            f"{samples!r} in mode bsp",
            "exactly-once (a step of bsp is the exact mean of its whole batch)",
            "remove it or set mode to asp or ssp",
        )


def _check_deterministic(draft: SpecDraft) -> None:
    if not draft.get("deterministic"):
        if "blocks" in draft.places:
            got = f"{draft.get('blocks')} without deterministic, where it has no effect"
            draft.complain("blocks", got, "it with deterministic: true only", "remove it")
        return
    strategy, workers = draft.get("strategy"), draft.get("workers.count")
    blocks = draft.get("blocks")
    modes = traits_of(draft).deterministic
    if not modes:
        got = f"true with strategy {strategy}"
        expected = "it with strategy allreduce, or on servers in mode bsp"
        draft.complain("deterministic", got, expected, "remove it or set strategy to allreduce")
    elif draft.get("mode") not in modes:
        got = f"true in mode {draft.get('mode')}, whose updates come in any order"
        draft.complain("deterministic", got, "mode bsp", "remove it or set mode to bsp")
    elif draft.get("solution") in SHORT_STEPS:
        got = f"{draft.get('solution')} with deterministic, where every step waits for all"
        draft.complain("solution", got, "another one", "remove it, or deterministic")
    elif isinstance(workers, int) and isinstance(blocks, int) and workers > blocks:
        expected = f"at least workers.count, which is {workers} (else some have nothing to do)"
        draft.complain("blocks", str(blocks), expected, f"write blocks: {workers}")


def _check_strategy(draft: SpecDraft) -> None:  # noqa: C901
    """Check what the strategy's row leaves open."""
    workers, traits = draft.get("workers.count"), traits_of(draft)
    if not traits.trains:
        _check_by_itself(draft, traits)
        return
    most = draft.get("max_workers")
    if isinstance(most, int) and isinstance(workers, int) and most < workers:
        expected = f"at least workers.count, which is {workers}"
        draft.complain("max_workers", str(most), expected, f"write max_workers: {workers}")
    ways: dict[str, tuple[object, ...]] = {"run_as": ("file", "module"), "watch": (True,)}
    for key, taken in ways.items():
        if draft.get(key) not in taken:
            got = f"{draft.get(key)!r} with strategy {draft.get('strategy')}".lower()
            draft.complain(key, got, "it with strategy script only", "remove it")
    strategy, least = draft.get("strategy"), draft.get("min_workers")
    for key in [key for key in draft.places if key.startswith("servers.")]:
        if not traits.has_servers:
            got = f"{draft.get(key)} with strategy {strategy}, where workers hold the model"
            expected = f"it with strategy {those(lambda row: row.has_servers)} only"
            draft.complain(key, got, expected, "remove it")
    if draft.get("mode") not in traits.modes:
        got = f"{draft.get('mode')!r} with strategy {strategy}"
        able = those(lambda row: draft.get("mode") in row.modes)
        remedy = f"remove it or set strategy to {able}"
        draft.complain("mode", got, "bsp (all workers take part in each step)", remedy)
    if traits.uneven_shares and draft.values.setdefault("solution", "none") != "none":
        got = f"{draft.get('solution')!r} with strategy {strategy}, {traits.uneven_shares}"
        draft.complain("solution", got, "none", "remove it or set strategy to allreduce")
    if traits.min_workers:
        if "min_workers" in draft.places:
            got = f"{least} with strategy {strategy}, {traits.min_workers}"
            able = those(lambda row: row.trains and not row.min_workers)
            draft.complain("min_workers", got, f"it with strategy {able} only", "remove it")
        return
    if isinstance(least, int) and isinstance(workers, int) and least > workers:
        expected = f"at most workers.count, which is {workers}"
        draft.complain("min_workers", str(least), expected, f"write min_workers: {workers}")


_OF_TRAINING = re.compile(
    r"servers\..*|mode|staleness|samples|batch_size|epochs|seed|data\..*|checkpoint\..*|min_workers"
    r"|max_workers|data_plane\..*|windows\..*|decide_every_s|solution_args\..*|timeouts\.hang_s"
)


def _check_by_itself(draft: SpecDraft, traits: Traits) -> None:
    """Refuse keys of training and decisions: the script trains on its own, and knows its rank."""
    for key in [key for key in draft.places if _OF_TRAINING.fullmatch(key)]:
        trained = f"it with strategy {_strategies_for(draft, key)} only"
        got = f"{draft.get(key)} with strategy {draft.get('strategy')}, which trains on its own"
        remedy = "remove it"
        if draft.places[key].startswith("--") and key in OF_SPEC:
            remedy += f", or write it after -- if {flag_of(key)} is the script's own"
        draft.complain(key, got, trained, remedy)
    if draft.values.setdefault("solution", "none") != "none":
        got = f"{draft.get('solution')!r} with strategy {draft.get('strategy')}"
        got += f", {traits.uneven_shares}"
        draft.complain("solution", got, "none", "remove it")


def _strategies_for(draft: SpecDraft, key: str) -> str:
    """Name the strategies that can do what a key of training asks for."""
    if key.startswith("servers."):
        return those(lambda row: row.has_servers)
    if key == "mode":
        return those(lambda row: draft.get(key) in row.modes and row.trains)
    return those(lambda row: row.trains)


def _check_memory(draft: SpecDraft) -> None:
    for role, least in MIN_MEMORY_BYTES.items():
        key = f"{role}.memory"
        limit = draft.get(key)
        if draft.is_sound([key]) and isinstance(limit, int) and limit < least:
            expected = f"at least {show(key, least)}, which it needs to start"
            remedy = how_to_write(draft.places[key], key, "2GiB")
            draft.complain(key, show(key, limit), expected, remedy)
        most = draft.get(f"{role}.max_memory")
        if not draft.is_sound([key, f"{role}.max_memory"]) or not isinstance(most, int):
            continue
        if not isinstance(limit, int) or most < limit:
            got = f"{show(key, most)} with {key} {show(key, limit)}"
            expected = f"a limit {key} from which it can be raised"
            draft.complain(f"{role}.max_memory", got, expected, "change one of them")


def _check_waits(draft: SpecDraft) -> None:
    for short, long, times in (
        ("restart.backoff_s", "restart.backoff_max_s", 1),
        ("timeouts.heartbeat_s", "timeouts.lost_after_s", 2),  # one late report is no loss
    ):
        low, high = draft.get(short), draft.get(long)
        if not (draft.is_sound([short, long]) and isinstance(low, float)):
            continue
        if isinstance(high, float) and times * low > high:
            key = long if long in draft.places else short
            got = f"{short} {show(short, low)} and {long} {show(long, high)}"
            expected = f"{long} to be at least {times} x {short}"
            draft.complain(key, got, expected, "change one of them")


def _check_folder(draft: SpecDraft) -> None:
    key = "checkpoint.dir"
    folder = draft.get(key)
    if isinstance(folder, str) and ":/" in folder and not folder.startswith("/"):
        try:
            RemoteCuts(folder)
        except ConfigError as error:
            draft.complaints.append(f"{where(draft.places[key], key)}: {error}")
    elif isinstance(folder, str) and Path(folder).exists() and not Path(folder).is_dir():
        draft.complain(key, f"the file {folder}", "a folder", "name another")


def _check_cwd(draft: SpecDraft) -> None:
    folder = draft.values.setdefault("cwd", os.getcwd())
    if isinstance(folder, str) and not Path(folder).is_dir():
        draft.complain("cwd", f"{folder!r}, no such folder", "one that is there", "name another")


def _check_encryption(draft: SpecDraft) -> None:
    key, transport = "data_plane.encryption", draft.get("data_plane.transport")
    if key in draft.places and draft.get(key) == "curve" and transport in {"shm", "ipc"}:
        got = f"'curve' with transport {transport}, which never leaves the host"
        draft.complain(key, got, "it with tcp or auto only", "remove it")


def _check_listen(draft: SpecDraft) -> None:
    key, address = "listen", str(draft.get("listen"))
    try:
        known = not ipaddress.IPv4Address(address).is_unspecified
    except ValueError:
        known = False
    if not known:
        expected = "an IPv4 address of this machine for others to connect to"
        draft.complain(key, repr(address), expected, "`hostname -I` lists them")


def _check_advertise(draft: SpecDraft) -> None:
    key, given = "advertise", draft.get("advertise")
    if not isinstance(given, str):
        return
    if not is_address(given):
        expected = "HOST:PORT, a name or an IPv4 address and a port from 1 to 65535"
        draft.complain(key, repr(given), expected, "e.g. job-a.example.org:4711")
    elif "listen" not in draft.places:
        got = f"{given} with listen {draft.get('listen')}, where no other machine reaches it"
        draft.complain(key, got, "it with `listen`", "write --set listen=ADDRESS, too")


def _check_backend(draft: SpecDraft) -> None:
    """A key of one backend means nothing on another."""
    backend = str(draft.get("backend"))
    kind = backend_kind(backend)
    foreign = {key for one in installed().values() for key in one.keys} - {*kind.keys}
    for key in sorted(foreign | {*kind.unread}):
        if key in draft.places and draft.get(key):
            got = f"it with backend {backend}, which does not read it"
            draft.complain(key, got, "it with another backend", "remove it")
    transport = str(draft.get("data_plane.transport"))
    if transport not in kind.transports:
        got = f"{transport!r} with backend {backend}, whose nodes are on several machines"
        expected = " or ".join(map(repr, kind.transports))
        draft.complain("data_plane.transport", got, expected, "remove it")


def _check_machines(draft: SpecDraft) -> None:
    """Check what a job of several machines needs, all but the first of which join."""
    machines, workers = draft.get("machines"), draft.get("workers.count")
    if not (isinstance(machines, int) and isinstance(workers, int)) or machines == 1:
        return
    strategy, traits = draft.get("strategy"), traits_of(draft)
    if traits.lives != "in_rounds":
        able = those(lambda row: row.lives == "in_rounds")
        got = f"{machines} with strategy {strategy}, whose machines join and leave as they like"
        draft.complain("machines", got, f"it with strategy {able} only", "remove it")
    if draft.get("backend") != DEFAULT:
        got = f"{machines} with backend {draft.get('backend')}, which chooses machines itself"
        draft.complain("machines", got, f"it with backend {DEFAULT} only", "remove it")
        return
    if workers % machines:
        got = f"{workers} workers on {machines} machines"
        expected = "as many on each machine (with --nproc-per-node their number follows)"
        draft.complain("workers.count", got, expected, "change one of them")
    if "listen" not in draft.places:
        got = f"{draft.get('listen')} with {machines} machines, where no other one reaches the job"
        remedy = "write --set listen=ADDRESS, or --master-addr ADDRESS; `hostname -I` lists them"
        draft.complain("listen", got, "an address of this machine", remedy)
    transport = draft.get("data_plane.transport")
    if transport in {"shm", "ipc"}:
        got = f"{transport!r} with {machines} machines"
        draft.complain("data_plane.transport", got, "'auto' or 'tcp'", "remove it")
    draft.values["data_plane.transport"] = "tcp"


def _check_windows(draft: SpecDraft) -> None:
    for name in ("short", "long"):
        keys = [f"windows.{name}_steps", f"windows.{name}_s"]
        if draft.is_sound(keys) and all(draft.get(key) is None for key in keys):
            remedy = "give one of the two"
            draft.complain(keys[0], f"none, as for {keys[1]}", "a window that ends", remedy)


def _check_env(draft: SpecDraft) -> None:
    for key in [key for key in draft.values if key.startswith("env.")]:
        name = key.removeprefix("env.")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            expected = "letters, digits and _ in the name"
            draft.complain(key, f"the name {name!r}", expected, "rename it")
        elif name == "OMP_NUM_THREADS":
            threads = draft.values[key]
            remedy = f"write torch_threads: {threads}"
            draft.complain(key, f"{threads!r} under env", "it under torch_threads", remedy)
        elif name in _CHOSEN and draft.is_sound(["strategy"]) and not traits_of(draft).trains:
            continue
        elif name.startswith("PACELINE_") or OF_TORCHRUN.fullmatch(name):
            draft.complain(key, f"the name {name!r}", "none that paceline sets", "remove it")


_CHECKS: tuple[tuple[Callable[[SpecDraft], None], tuple[str, ...]], ...] = (
    (_check_script, ("script", "run_as")),
    (_check_mode, ("mode", "staleness", "samples", "checkpoint.every_steps")),
    (
        _check_strategy,
        (
            "strategy",
            "run_as",
            "watch",
            "mode",
            "min_workers",
            "max_workers",
            "workers.count",
            "preflight",
        ),
    ),
    (
        _check_deterministic,
        ("deterministic", "blocks", "strategy", "mode", "workers.count", "solution"),
    ),
    (_check_memory, ()),
    (_check_waits, ()),
    (_check_folder, ("checkpoint.dir",)),
    (_check_cwd, ("cwd",)),
    (_check_encryption, ("data_plane.encryption", "data_plane.transport")),
    (_check_listen, ("listen",)),
    (_check_advertise, ("advertise", "listen")),
    (_check_backend, ("backend", "strategy", "data_plane.transport")),
    (
        _check_machines,
        ("machines", "workers.count", "strategy", "backend", "data_plane.transport"),
    ),
    (_check_windows, ()),
    (_check_env, ()),
)
"""Checks of several values together; skipped when a value that one compares was refused already."""


def _build(draft: SpecDraft) -> JobSpec:
    script = Path(str(draft.values["script"]))
    stem = script.name if draft.get("run_as") == "module" else script.stem
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)
    tree: dict[str, Any] = {"name": stem.lstrip("._-")[:63] or "job", "sources": draft.places}
    for key, value in draft.values.items():
        *sections, name = key.split(".")
        section = tree
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return msgspec.convert(tree, JobSpec)


def resolve(target: str | Path, flags: Mapping[str, str], args: Sequence[str] = ()) -> JobSpec:
    """Read the spec of a job: defaults < file < flags.

    Args:
        target: a script (``.py``) or a job spec (``.yaml``, ``.yml``). Paths in a spec are
            relative to its folder, paths in flags to the current one.
        flags: dotted YAML key -> text, as in ``{"workers": "4", "servers.memory": "2GiB"}``.
        args: arguments for the script; any here replace those of the file.

    Raises:
        ConfigError: the message has one line for each mistake found.
    """
    draft, path = SpecDraft(), Path(target)
    if path.suffix in SPECS:
        _read_file(draft, path)
    elif path.suffix == ".py" or flags.get("run_as", "file") != "file":
        draft.put("script", COMMAND_LINE, _word_node(str(target)), Path.cwd())
    else:
        raise ConfigError(target_fault(str(target)))
    _read_flags(draft, flags)
    if args:
        words = SequenceNode("tag:yaml.org,2002:seq", [_word_node(word) for word in args])
        draft.put("args", COMMAND_LINE, words, Path.cwd())
    choose_strategy(draft)
    for check, keys in _CHECKS:
        if draft.is_sound(keys):
            check(draft)
    call_parts("checked", draft)
    if draft.complaints:
        raise ConfigError("\n".join(draft.complaints))
    return _completed(_build(draft))


def _completed(spec: JobSpec) -> JobSpec:
    """Have features choose values that nobody has set."""
    for name, complete in parts_of("completed", say_failed, spec):
        try:
            found = complete(spec)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            say_failed(name, error)
            continue
        if isinstance(found, JobSpec):
            spec = found
        else:
            say_failed(name, TypeError(f"it completes a spec to {found!r:.100}"))
    return spec


def explain(spec: JobSpec) -> list[str]:
    """List each value with its source; those of ``env`` may be secrets and are hidden."""
    tree = msgspec.to_builtins(spec)
    lines = []
    for key in LEAVES:
        value = tree
        for part in key.split("."):
            value = value[part]
        lines.append(f"{key} = {show(key, value)}  ({spec.sources.get(key, 'default')})")
    lines += [
        f"{section}.{name} = {value}  ({spec.sources.get(f'{section}.{name}')})"
        for section, args in (
            ("solution_args", spec.solution_args),
            ("resources_args", spec.resources_args),
            ("log_to", spec.log_to),
        )
        for name, value in args.items()
    ]
    hidden = [f"env.{name} = ***  ({spec.sources.get(f'env.{name}')})" for name in spec.env]
    return lines + hidden
