"""Metrics of a job for Prometheus: an endpoint on loopback, behind a token."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="exporter",
    about="shows a job's metrics to Prometheus, on loopback and behind a token",
    switch="metrics_port: --set metrics_port=9464",
    keys=("metrics_port",),
    only_with="metrics_port",
    lacks="paceline.features.exporter.lacks:lacks",
    master="paceline.features.exporter.master:ExporterPart",
)
