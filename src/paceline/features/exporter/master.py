"""The exporter in a master: opens the endpoint, and gives it the newest figures."""

from paceline.features.exporter.exporter import Exporter
from paceline.master.exposed import Exposed
from paceline.master.feature_port import Core, MasterPart
from paceline.wire.events.base import FeatureEvent


class NoMetricsEndpointEvent(FeatureEvent, frozen=True):
    """Prometheus gets no answers: the port cannot be had."""

    feature_name = "exporter"
    port: int
    error: str

    clause_words = "metrics_port {0.port}: {0.error}; the job goes on without it"
    sentence_words = "no metrics endpoint: {0.clause}"


class ExporterPart(MasterPart):
    """Shows the figures of a job, once its endpoint is open."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._exporter: Exporter | None = None

    def begin(self) -> None:
        port = self._core.spec.metrics_port or 0
        try:
            self._exporter = Exporter(self._core.job, port)
        except OSError as error:  # taken meanwhile, which is no reason to end a job
            self._core.tell(NoMetricsEndpointEvent(port=port, error=str(error.strerror)))

    def measured(self, figures: Exposed) -> None:
        if self._exporter is not None:
            self._exporter.publish(figures)

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()
