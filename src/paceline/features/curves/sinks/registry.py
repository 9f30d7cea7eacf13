"""Sinks by name: paceline's own, and those that installed packages declare."""

import difflib
from collections.abc import Iterator, Mapping

from paceline.base.errors import ConfigError
from paceline.features.curves.sinks.mlflow import MLflow
from paceline.features.curves.sinks.sink import GROUP, Sink
from paceline.features.curves.sinks.tensorboard import TensorBoard
from paceline.features.curves.sinks.wandb import WeightsAndBiases
from paceline.jobs.spec_draft import SpecDraft, traits_of
from paceline.policy.plugins import Plugins
from paceline.wire.spec import JobSpec

BUILT_IN: Mapping[str, type[Sink]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
SINKS: Plugins[Sink] = Plugins("sink", GROUP, Sink, BUILT_IN)


def check_sinks(draft: SpecDraft) -> None:
    """Complain about sinks of a job to which nothing would come."""
    prefix = "log_to."
    for key in [key for key in draft.places if key.startswith(prefix)]:
        if draft.is_sound(["strategy"]) and not traits_of(draft).trains:
            got = f"it with strategy {draft.get('strategy')}, whose scripts log on their own"
            draft.complain(key, got, "it where job.log is called", "remove it")


def sink_complaints(spec: JobSpec) -> Iterator[str]:
    """Say what the sinks of a job lack."""
    for name, to in spec.log_to.items():
        key = f"log_to.{name}"
        try:
            if name not in SINKS.names():
                raise ConfigError(_unknown(name))
            SINKS.make(name, {"to": to}).check()
        except ConfigError as error:
            yield f"{spec.place_of(key)}: {error}"


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, SINKS.names(), 1)
    remedy = f"did you mean {near[0]}?" if near else "install the package that declares it"
    return f"got the sink {name!r}, expected one of {', '.join(SINKS.names())}; {remedy}"
