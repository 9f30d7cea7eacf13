"""The flags of ``paceline run``, each declared once: from these rows come options, help and rules.

What a value looks like, and in which range, is the spec's own rule for the key
(``paceline.jobs.spec_values``); torchrun's flags are read by ``paceline.terminal.torchrun``.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, get_args

import typer
from msgspec import Struct
from msgspec.inspect import FloatType, IntType, LiteralType, Metadata, Type, UnionType, type_info

from paceline.base.backends import installed
from paceline.jobs.spec_values import LEAVES, show

SHORT = MappingProxyType(
    {
        "workers": "workers.count",
        "servers": "servers.count",
        "share": "share.class",
        "device": "share.device",
        "device_memory": "share.device_memory",
    }
)
"""Keys that stand for one inside their section; of the last two only the flag."""

SIZE, TRAINING, NODES = "How much and how many", "How it trains", "Where and how nodes run"
TORCHRUN = "torchrun's flags: strategy script"


class Flag(Struct, frozen=True, kw_only=True):
    """One option of ``paceline run``."""

    names: tuple[str, ...]
    """Spellings of the option; messages use the first."""
    help: str = ""
    """Help of the option; empty: taken, but not listed."""
    metavar: str = ""
    """Name of the value; empty: a switch."""
    panel: str | None = None
    default: str = ""
    """Value that holds without the option, in words; empty: the help says it."""
    choices: tuple[str, ...] = ()
    """Values that a shell completes; empty: none are known."""
    is_first: bool = False
    """True: a first week needs it, so ``--help`` lists it; ``--help-all`` lists all."""

    @property
    def parameter(self) -> str:
        """The name of its value in Python."""
        return self.names[0].removeprefix("--").replace("-", "_")

    @property
    def told(self) -> str:
        """The help with the default; empty: the option is not listed."""
        return f"{self.help} Default: {self.default}." if self.help and self.default else self.help


_OF_SPEC = {
    "workers": (SIZE, "Workers run the script."),
    "servers": (SIZE, "Servers hold the model."),
    "batch_size": (SIZE, "Samples in a global batch."),
    "epochs": (SIZE, "Passes over the data."),
    "strategy": (TRAINING, "Who holds the model."),
    "mode": (TRAINING, "How workers wait for each other."),
    "staleness": (TRAINING, "Steps that workers may be apart."),
    "samples": (TRAINING, "What holds for each sample."),
    "seed": (TRAINING, "Seed of all random numbers."),
    "deterministic": (TRAINING, "The same model, whichever worker computes what."),
    "solution": (TRAINING, "Policy against stragglers."),
    "name": (NODES, "What to call the job."),
    "torch_threads": (NODES, "Threads of torch per worker."),
    "backend": (NODES, "Where nodes run."),
    "share": (NODES, "How it shares its device."),
    "device": (NODES, "The cores or the GPU that it shares, e.g. cpu:0, cuda:0."),
    "device_memory": (NODES, "The memory that it shares, e.g. 4GiB."),
    "pending_s": (NODES, "Hold each launch back, e.g. 5s."),
}
"""Keys of the spec that have a flag of their own: panel and help."""
FIRST = ("workers", "servers", "strategy")
"""Keys among them whose flag a first week needs. With `AUTO`, `MODULE`, torchrun's number of
processes and four of the command's own these are ten: ``run --help`` has no more."""
DEFAULTS = MappingProxyType(
    {
        "servers": "none; 1 with strategy ps",
        "batch_size": "the script's",
        "epochs": "the script's",
        "strategy": "allreduce, or ps if the script has sparse tables",
        "name": "the script's",
        "torch_threads": "an even part of the cores",
        "deterministic": "off",
    }
)
"""Values that hold without the flag, where the spec's own default does not say them."""
AUTO_POLICY = "rm"
"""The resource policy that ``--auto`` names."""
MAX_METAVAR = 13
"""Most characters of choices that stand beside a flag; longer ones stand in its help."""


def flag_of(key: str) -> str:
    """Name the flag that sets ``key``: its own, like ``--batch-size``, else ``--set a.b``."""
    if key in OF_SPEC:
        return OF_SPEC[key].names[0]
    return f"--set {key}"


def _metavar(key: str) -> str:
    """Say what a value of the key looks like, in a word; empty: true or false."""
    leaf = LEAVES[SHORT.get(key, key)]
    if words := "|".join(choices_of(key)):
        return words if len(words) <= MAX_METAVAR else "NAME"
    match _bare(type_info(leaf.type)):
        case IntType():
            return "N"
        case FloatType():
            return "TIME" if key.endswith("_s") else "X"
        case _:
            return "" if isinstance(leaf.default, bool) else "TEXT"


def choices_of(key: str) -> tuple[str, ...]:
    """Name the words that a value can be, in the order in which the spec explains them."""
    if key == "backend":
        return tuple(installed())
    kind = LEAVES[SHORT.get(key, key)].type
    is_literal = isinstance(_bare(type_info(kind)), LiteralType)
    return tuple(map(str, get_args(kind))) if is_literal else ()


def _bare(kind: Type) -> Type:
    """The type of a value that is there, without its range."""
    if isinstance(kind, UnionType):
        kind = kind.types[0]
    return kind.type if isinstance(kind, Metadata) else kind


def _of_spec(key: str) -> Flag:
    panel, help_ = _OF_SPEC[key]
    name = "--" + key.removesuffix("_s").replace("_", "-")
    choices, metavar = choices_of(key), _metavar(key)
    if metavar == "NAME":
        help_ = f"{help_.removesuffix('.')}: {', '.join(choices[:-1])} or {choices[-1]}."
    return Flag(
        names=(name,),
        help=help_,
        metavar=metavar,
        panel=panel,
        default=DEFAULTS.get(key) or show(key, LEAVES[SHORT.get(key, key)].default),
        choices=choices,
        is_first=key in FIRST,
    )


MODULE = Flag(
    names=("--module", "-m"),
    help="The script is a module, as for python -m.",
    panel=NODES,
    default="a file",
    is_first=True,
)
AUTO = Flag(
    names=("--auto",),
    help="Find the numbers of workers, servers and cores while it trains.",
    panel=SIZE,
    default="off",
    is_first=True,
)
TENSORBOARD = Flag(
    names=("--tensorboard",),
    help="Write what the script logs for TensorBoard, too.",
    metavar="DIR",
    panel=NODES,
    default="none",
)
WANDB = Flag(
    names=("--wandb",),
    help="Write it for Weights & Biases, too.",
    metavar="DIR",
    panel=NODES,
    default="none",
)
MLFLOW = Flag(
    names=("--mlflow",),
    help="Write it for MLflow, too: a folder, or a tracking URI.",
    metavar="DIR",
    panel=NODES,
)
OF_SPEC: Mapping[str, Flag] = MappingProxyType(
    {key: _of_spec(key) for key in _OF_SPEC}
    | {"run_as": MODULE, "resources.policy": AUTO}
    | {"log_to.tensorboard": TENSORBOARD, "log_to.wandb": WANDB, "log_to.mlflow": MLFLOW}
)


def of_spec(given: Mapping[str, str | bool | None]) -> dict[str, str]:
    """Key of the spec -> text, of the options that were given (by parameter)."""
    found = {key: given[flag.parameter] for key, flag in OF_SPEC.items()}
    found |= {"resources.policy": AUTO_POLICY} if found["resources.policy"] else {}
    found |= {"run_as": "module"} if found["run_as"] else {}
    return {key: _text(value) for key, value in found.items() if value not in (None, False)}


def _text(value: str | bool | None) -> str:
    return "true" if value is True else str(value)


def with_options(rows: Iterable[Flag]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command that takes ``**given`` one option for each row, before those of its own."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        arguments = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        options = [p for p in own if p.kind is p.KEYWORD_ONLY]
        parameters = [*arguments, *map(_parameter, rows), *options]
        decorated: Any = command
        decorated.__signature__ = signature.replace(parameters=parameters)
        decorated.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _parameter(flag: Flag) -> inspect.Parameter:
    option = typer.Option(
        *flag.names,
        help=flag.told,
        metavar=flag.metavar or None,
        hidden=not flag.help,
        show_default=False,
        rich_help_panel=flag.panel,
        autocompletion=(lambda: [*flag.choices]) if flag.choices else None,
    )
    kind: Any = Annotated[str | None, option] if flag.metavar else Annotated[bool, option]
    default = None if flag.metavar else False
    return inspect.Parameter(
        flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )
