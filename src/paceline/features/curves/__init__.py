"""Curves of what scripts log: a file, the newest values in status, and sinks elsewhere."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="curves",
    about="keeps what scripts log as curves: in curves.jsonl, in TensorBoard, W&B, MLflow",
    switch="job.log in the script; log_to.NAME, --tensorboard, --wandb, --mlflow: also elsewhere",
    keys=("log_to",),
    checked="paceline.features.curves.sinks.registry:check_sinks",
    lacks="paceline.features.curves.sinks.registry:sink_complaints",
    master="paceline.features.curves.master:CurvesPart",
    process="paceline.features.curves.process:make",
    shown="paceline.features.curves.shown:shown",
)
