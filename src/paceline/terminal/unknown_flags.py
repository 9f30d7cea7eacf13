"""What to write instead of a flag that ``paceline run`` does not have. Pure.

The flag may be the script's own, a misspelt one, one of another launcher, or a key of the spec. The
message has the whole command to write, for each of these that it can be.
"""

import difflib
import shlex
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType

from paceline.base.errors import ConfigError
from paceline.jobs.spec_values import LEAVES
from paceline.terminal.command_words import CommandWord, Options, flat, read_words

VALUE = "{}"
"""Stands for the flag's value in the words to write instead."""
_PROCESSES = ("--nproc-per-node", VALUE)
_WORKERS = ("--workers", VALUE)
_SERVERS = ("--servers", VALUE)
_OTHERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    dict.fromkeys(("--num-processes", "--num-gpus", "--gpus", "--gpus-per-node"), _PROCESSES)
    | dict.fromkeys(("--nproc", "--procs", "--num-gpus-per-node", "--ntasks-per-node"), _PROCESSES)
    | dict.fromkeys(("-np", "-n", "-w", "--np", "--num-proc", "--ntasks"), _WORKERS)
    | dict.fromkeys(("--worker", "--num-workers", "--nworkers", "--n-workers"), _WORKERS)
    | dict.fromkeys(("--world-size", "--replicas", "--processes"), _WORKERS)
    | dict.fromkeys(("--server", "--num-servers", "--num-ps", "--ps", "--nservers"), _SERVERS)
    | dict.fromkeys(("--num-nodes", "--num-machines", "-N"), ("--nnodes", VALUE))
    | dict.fromkeys(("--background", "--daemon", "--bg"), ("--detach",))
    | dict.fromkeys(("--dry", "--print-config"), ("--dry-run",))
    | dict.fromkeys(("--checkpoint-dir", "--ckpt-dir"), ("--set", f"checkpoint.dir={VALUE}"))
    | dict.fromkeys(("--ddp", "--horovod", "--allreduce"), ("--strategy", "allreduce"))
    | dict.fromkeys(("--fsdp", "--use-fsdp", "--fsdp2"), ("--strategy", "fsdp"))
    | dict.fromkeys(("--async", "--asp"), ("--mode", "asp"))
    | dict.fromkeys(("--sync", "--bsp"), ("--mode", "bsp"))
    | {
        "--machine-rank": ("--node-rank", VALUE),
        "--main-process-port": ("--master-port", VALUE),
        "--main-process-ip": ("--master-addr", VALUE),
        "--multi-gpu": ("--nproc-per-node", "gpu"),
        "--gpu-ids": ("--set", f"env.CUDA_VISIBLE_DEVICES={VALUE}"),
        "--min-np": ("--set", f"min_workers={VALUE}"),
        "--max-np": ("--set", f"max_workers={VALUE}"),
        "--ssp": ("--mode", "ssp"),
        "--ray": ("--backend", "ray"),
    }
)
"""Flags of accelerate, deepspeed, horovodrun, mpirun, srun and the like, as words to write here."""
_HOSTS = frozenset(("-H", "--hosts", "--hostfile", "--host", "--include", "--exclude"))
"""Flags that name machines."""
_SPEC_FLAGS = frozenset(("-c", "-f", "--config", "--config-file", "--file", "--spec"))
"""Flags before a job spec, which needs none here."""
_SPECS = (".yaml", ".yml")

Defined = Callable[[str, Set[str]], Set[str]]
"""Which of some flags a script seems to have."""


def refusal(words: Sequence[str], options: Options, defined: Defined) -> ConfigError:
    """Make the error about the first flag, up to ``--``, that is not paceline's.

    Args:
        words: after ``paceline run``; there is such a flag among them.
        options: paceline's own.
        defined: which of these flags a script seems to have.
    """
    cut = words.index("--") if "--" in words else len(words)
    read, args = list(read_words(words[:cut], options)), words[cut + 1 :]
    script = _script_of(read)
    read, args = _as_torchrun(read, script, args, options)
    unknown = [word.words[0] for word in read if word.is_unknown]
    names = {word.partition("=")[0] for word in unknown}
    dashed = {_dashed(name) for name in names}
    defines = defined(script, dashed) if script else dashed - dashed
    theirs = {name for name in names if _dashed(name) in defines}
    instead = {name: _instead(name, options, script) for name in names - theirs}
    passed = _command(read, script, args, {})
    ours = [word for word in unknown if instead.get(word.partition("=")[0]) is not None]
    first = [*ours, *unknown][0]
    name = first.partition("=")[0]
    head = f"{first}: got a flag that `paceline run` does not have"
    if name in _HOSTS and name not in theirs:
        return ConfigError(
            f"{head}, expected none that names machines: nodes run on this one, or with --backend "
            "ray on a Ray cluster; leave it out"
        )
    if instead.get(name) is None:
        return ConfigError(f"{head}, expected the script's own after --; write {passed}")
    meant = _command(read, script, args, instead)
    return ConfigError(f"{head}; write {meant}, or if {name} is the script's own, {passed}")


def _as_torchrun(
    read: list[CommandWord], script: str, args: Sequence[str], options: Options
) -> tuple[list[CommandWord], Sequence[str]]:
    """Give a script all words after it, if a flag of torchrun's stands before it."""
    at = next((at for at, word in enumerate(read) if word.words == (script,)), len(read))
    if any(word.name in options.torchrun for word in read[:at]):
        return read[: at + 1], [*flat(read[at + 1 :]), *args]
    return read, args


def _script_of(read: Sequence[CommandWord]) -> str:
    """Find the script among words with unknown flags, whose values may look like it."""
    plain = [
        (word.words[0], at > 0 and read[at - 1].is_unknown)
        for at, word in enumerate(read)
        if not word.name and not word.is_unknown
    ]
    scripts = [word for word, _ in plain if word.endswith(".py")]
    specs = [word for word, _ in plain if word.endswith(_SPECS)]
    sure = [word for word, may_be_value in plain if not may_be_value]
    return next(iter([*scripts, *specs, *sure]), "")


def _instead(name: str, options: Options, script: str) -> tuple[str, ...] | None:
    """The words of ours for a flag that is none of ours; None: it means nothing here."""
    name = _dashed(name)
    if name in _SPEC_FLAGS and script.endswith(_SPECS):
        return ()
    if known := _OTHERS.get(name):
        return known
    key = next((key for key in LEAVES if _dashed(f"--{key}") == name), "")
    if key:
        return ("--set", f"{key}={VALUE}")
    ours = [known for known in options.takes_value if known.startswith("--")]
    close = difflib.get_close_matches(name, ours, 1, 0.8)
    if not close:
        return None
    return (close[0], VALUE) if options.takes_value[close[0]] else (close[0],)


def _dashed(name: str) -> str:
    """A flag, or a key of the spec, as flags are spelt."""
    return name.replace(".", "-").replace("_", "-")


def _command(
    read: Sequence[CommandWord],
    script: str,
    args: Sequence[str],
    instead: Mapping[str, tuple[str, ...] | None],
) -> str:
    """Write the command with some flags replaced, and the other unknown ones after ``--``."""
    ours, theirs, has_script = list[str](), list[str](), False
    for word, value in _with_values(read, script):
        name, equals, given = word.words[0].partition("=")
        new = instead.get(name)
        if word.name:
            ours += word.words
        elif word.words[0] == script and not has_script:
            ours.append(script)
            has_script = True
        elif not word.is_unknown:
            theirs += word.words if has_script else ()  # before the script: as `python`
        elif new is None:
            theirs += [*word.words, *value]
        else:
            given = given if equals else "".join(value)
            ours += [part.replace(VALUE, given or "N") for part in new]
    ours += [] if has_script else ["train.py"]
    theirs += args
    return shlex.join(["paceline", "run", *ours, *(["--", *theirs] if theirs else [])])


def _with_values(
    read: Sequence[CommandWord], script: str
) -> list[tuple[CommandWord, tuple[str, ...]]]:
    """Pair each unknown flag with the word after it, which may be its value."""
    found = list[tuple[CommandWord, tuple[str, ...]]]()
    left = list(read)
    while left:
        word = left.pop(0)
        has_value = (
            word.is_unknown
            and "=" not in word.words[0]
            and bool(left)
            and not (left[0].name or left[0].is_unknown)
            and left[0].words[0] != script
        )
        found.append((word, tuple(flat([left.pop(0)])) if has_value else ()))
    return found
