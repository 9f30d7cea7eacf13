"""torchrun's flags, read as those of ``paceline run``: which mean what here, and which nothing.

Any of them makes the job one of strategy script. What says the same as the default is taken, and so
is, with a word about it, what only tunes torchrun's own agent; what would ask for something else is
refused. With ``--nnodes`` the command runs on the first machine; an address that would say where
that is says where the job listens. All other machines join by ``paceline agent --join``.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from paceline.base.errors import ConfigError
from paceline.jobs.flags import TORCHRUN, Flag

OTHERS = (
    *("--rdzv-conf", "--logs-specs", "--local-ranks-filter", "--duplicate-stdout-filters"),
    *("--duplicate-stderr-filters", "--signals-to-handle", "--numa-binding"),
    "--event-log-handler",
)
"""Flags with a value that are refused."""
IGNORED = ("tee", "redirects", "monitor-interval", "start-method")


def _flag(name: str, metavar: str, help_: str, *more: str) -> Flag:
    return Flag(names=(name, *more), metavar=metavar, help=help_, panel=TORCHRUN)


TORCHRUN_FLAGS = (
    Flag(
        names=("--nproc-per-node",),
        metavar="N",
        help="Run a script for torchrun, in so many processes: a number, cpu, gpu or auto.",
        panel=TORCHRUN,
        default="1",
        is_first=True,
    ),
    _flag("--nnodes", "N", "Machines; all but this one join."),
    _flag("--node-rank", "N", "Of this machine: 0."),
    _flag("--max-restarts", "N", "Of all processes together."),
    _flag("--standalone", "", "On this machine, as always."),
    _flag("--rdzv-backend", "NAME", "As always: nothing."),
    _flag("--rdzv-endpoint", "HOST:PORT", "This machine; with --nnodes, `listen`."),
    _flag("--rdzv-id", "TEXT", "TORCHELASTIC_RUN_ID."),
    _flag("--role", "TEXT", "ROLE_NAME."),
    _flag("--local-addr", "HOST", "Of this machine; with --nnodes, `listen`."),
    _flag("--master-addr", "HOST", "The same."),
    _flag("--master-port", "PORT", "Default: a fresh one."),
    _flag("--shutdown-timeout", "TIME", "After SIGTERM."),
    _flag("--log-dir", "DIR", "Gets a link to the logs."),
    _flag("--no-python", "", "The script is any program."),
    _flag("--tee", "N", "", "-t"),
    _flag("--redirects", "N", "", "-r"),
    _flag("--monitor-interval", "TIME", ""),
    _flag("--start-method", "NAME", ""),
    *(_flag(name, "TEXT", "") for name in OTHERS),
)
"""Flags that torchrun has; without help: not listed."""


def as_torchrun(name: str) -> str:
    """Take flags with underscores, as torchrun does."""
    return name.replace("_", "-")


def of_torchrun(given: Mapping[str, str | bool | None]) -> dict[str, str]:
    """Name without dashes -> text, of torchrun's flags that were given (by parameter)."""
    found = {flag.names[0].removeprefix("--"): given[flag.parameter] for flag in TORCHRUN_FLAGS}
    return {name: str(value) for name, value in found.items() if value}


FIRST_MACHINE = (
    "the command runs on the first machine; all others join by `paceline agent --join TICKET`"
)
MASTER_MEETS = "the job's master brings the workers together; leave the flag out"
OF_SIZE = frozenset({"nnodes", "nproc-per-node", "master-addr"})
"""Flags that strategy fsdp takes, too: its workers live in rounds, as ranks do."""
_HOST = "host"
"""Key of an address of this machine, until it is known whether others join."""
NUM_GPUS = "import torch; print(torch.cuda.device_count())"


def translate(given: Mapping[str, str], spec_flags: Mapping[str, str]) -> dict[str, str]:
    """The keys of a spec that stand for torchrun's flags; nothing was given: nothing.

    Args:
        given: by torchrun's name, without the first dashes.
        spec_flags: all other flags of the command line.

    Raises:
        ConfigError: a flag has no meaning here, or contradicts another.
    """
    if not given:
        return {}
    first = f"--{next(iter(given))}"
    if spec_flags.get("strategy", "script") != "script" and not _is_size(given, spec_flags):
        raise ConfigError(
            f"{first}: got it with --strategy {spec_flags['strategy']}, expected it with strategy "
            "script, for scripts that train by themselves; leave it out, and say --workers N"
        )
    if "nproc-per-node" in given and spec_flags.keys() & {"workers", "workers.count"}:
        raise ConfigError(
            "--nproc-per-node and --workers: got both, expected one of them; leave --workers out"
        )
    if "no-python" in given and spec_flags.get("run_as") == "module":
        raise ConfigError("--module and --no-python: got both, expected one of them; leave one out")
    found = {"strategy": spec_flags.get("strategy", "script")}
    for name, value in given.items():
        found |= _READERS[name](f"--{name}", value)
    return _of_machines(found, spec_flags)


def _is_size(given: Mapping[str, str], spec_flags: Mapping[str, str]) -> bool:
    """Tell whether the flags say only on how many machines a job of fsdp is."""
    return spec_flags.get("strategy") == "fsdp" and given.keys() <= OF_SIZE


def _of_machines(found: dict[str, str], spec_flags: Mapping[str, str]) -> dict[str, str]:
    """Complete what the flags say of a job on several machines.

    Args:
        found: key -> text, so far.
        spec_flags: all other flags of the command line.
    """
    machines, host = int(found.pop("machines", "1")), found.pop(_HOST, "")
    if machines == 1:
        return found
    host = found.pop("env.MASTER_ADDR", host)
    if "workers" in found:
        found["workers"] = str(machines * int(found["workers"]))
    elif not spec_flags.keys() & {"workers", "workers.count"}:
        found["workers"] = str(machines)
    if spec_flags.get("backend", "local") == "local":
        found["machines"] = str(machines)
    if host and "listen" not in spec_flags:
        found["listen"] = _address_of(host)
    return found


def _address_of(host: str) -> str:
    """Return the IPv4 address of a name of this machine; what is none stays, and is refused."""
    with contextlib.suppress(OSError):
        return socket.gethostbyname(host)
    return host


def note_ignored(given: Iterable[str]) -> str:
    """A line about those of torchrun's flags that change nothing here; empty: there are none."""
    names = [f"--{name}" for name in given if name in IGNORED]
    if not names:
        return ""
    return (
        f"paceline: {', '.join(names)}: ignored, since all output is kept (`paceline logs`), a "
        "death is seen at once, and processes are forked from one that has imported torch"
    )


def _nproc_per_node(flag: str, value: str) -> dict[str, str]:
    num_cores = len(os.sched_getaffinity(0))
    match value:
        case "cpu":
            return {"workers": str(num_cores)}
        case "auto":
            return {"workers": str(_count_gpus() or num_cores)}
        case "gpu":
            count = _count_gpus()
            if count == 0:
                raise ConfigError(f"{flag}: got gpu, but torch finds none; write {flag} cpu")
            return {"workers": str(count)}
        case _:
            expected = "a number of processes, cpu, gpu or auto"
            expected += f"; write e.g. {flag} 2"
            return {"workers": _whole(flag, value, range(1, 10_001), expected)}


def _whole(flag: str, value: str, among: range, expected: str) -> str:
    if not (value.isascii() and value.isdigit() and int(value) in among):
        raise ConfigError(f"{flag}: got {value!r}, expected {expected}")
    return value


def _count_gpus() -> int:
    """Return how many GPUs torch counts, in another process: the command line imports no torch."""
    command = [sys.executable, "-P", "-c", NUM_GPUS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def _max_restarts(flag: str, value: str) -> dict[str, str]:
    budget = _whole(flag, value, range(1_000_001), "a number of restarts, at least 0")
    return {"restart.budget": budget, "restart.window_s": "null", "restart.repeat": "true"}


def _only(*values: str, why: str = FIRST_MACHINE) -> Callable[[str, str], dict[str, str]]:
    def read(flag: str, value: str) -> dict[str, str]:
        if value not in values:
            raise ConfigError(f"{flag}: got {value!r}, expected {values[0]}: {why}")
        return {}

    return read


def _nnodes(flag: str, value: str) -> dict[str, str]:
    least, _, most = value.partition(":")
    expected = "a number of machines, e.g. 2: their number stays the same while the job runs"
    if most not in ("", least):
        raise ConfigError(f"{flag}: got {value!r}, expected {expected}")
    return {"machines": _whole(flag, least, range(1, 10_001), expected)}


def _rdzv_endpoint(flag: str, value: str) -> dict[str, str]:
    host = value.rpartition(":")[0] or value
    _check_local(flag, host)
    return {_HOST: host}


def _master_addr(flag: str, value: str) -> dict[str, str]:
    _check_local(flag, value)
    return {"env.MASTER_ADDR": value}


def _check_local(flag: str, host: str) -> None:
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
    except OSError as error:
        expected = f"an address of this machine: {FIRST_MACHINE}"
        raise ConfigError(f"{flag}: got {host!r}, expected {expected}") from error


def _master_port(flag: str, value: str) -> dict[str, str]:
    expected = "a port; leave it out, and each start gets a fresh one"
    return {"env.MASTER_PORT": _whole(flag, value, range(1, 65_536), expected)}


def _unknown(flag: str, _value: str) -> dict[str, str]:
    raise ConfigError(f"{flag}: got a flag of torchrun that has no counterpart here; leave it out")


_READERS: Mapping[str, Callable[[str, str], dict[str, str]]] = MappingProxyType(
    {
        "nproc-per-node": _nproc_per_node,
        "nnodes": _nnodes,
        "node-rank": _only("0"),
        "max-restarts": _max_restarts,
        "standalone": lambda _flag, _value: {},
        "shutdown-timeout": lambda _, value: {"timeouts.stop_s": value},
        "rdzv-backend": _only("c10d", "static", why=MASTER_MEETS),
        "rdzv-endpoint": _rdzv_endpoint,
        "role": lambda _, value: {"env.ROLE_NAME": value},
        "rdzv-id": lambda _, value: {"env.TORCHELASTIC_RUN_ID": value},
        "local-addr": _master_addr,
        "master-addr": _master_addr,
        "master-port": _master_port,
        "log-dir": lambda _flag, _value: {},
        "no-python": lambda _flag, _value: {"run_as": "program"},
        **dict.fromkeys(IGNORED, lambda _flag, _value: {}),
        **dict.fromkeys((name.removeprefix("--") for name in OTHERS), _unknown),
    }
)
