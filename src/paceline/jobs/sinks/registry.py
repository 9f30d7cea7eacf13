"""Sinks by name: paceline's own, and those that installed packages declare."""

from collections.abc import Iterator, Mapping

from paceline.base.errors import ConfigError
from paceline.jobs.sinks.sink import GROUP, Sink
from paceline.jobs.sinks.tensorboard import TensorBoard
from paceline.jobs.sinks.wandb import WeightsAndBiases
from paceline.policy.plugins import Plugins
from paceline.wire.spec import JobSpec

BUILT_IN: Mapping[str, type[Sink]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
SINKS: Plugins[Sink] = Plugins("sink", GROUP, Sink, BUILT_IN)


def sink_complaints(spec: JobSpec) -> Iterator[str]:
    """Say what the sinks of a job lack."""
    for name, to in spec.log_to.items():
        try:
            SINKS.make(name, {"to": to}).check()
        except ConfigError as error:
            key = f"log_to.{name}"
            place = spec.sources.get(key, key)
            where = place if place.startswith("--") or place == key else f"{place}: {key}"
            yield f"{where}: {error}"
