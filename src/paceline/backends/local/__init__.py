"""Nodes as processes of this machine."""

from paceline.base.backends import BackendKind

BACKEND = BackendKind(
    name="local",
    about="processes on this machine",
    opened="paceline.backends.local.backend:open_backend",
    keys=("pending_s", "pending_trace", "share.device", "share.devices"),
    transports=("auto", "shm", "ipc", "tcp"),
)
