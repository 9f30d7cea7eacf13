"""The sharing of devices in a worker: nothing, unless its job shares one."""

from paceline.base.errors import ConfigError
from paceline.runtime.process.feature_port import Here, ProcessPart
from paceline.runtime.process.process import Process


class SharedProcess(ProcessPart):
    """Part that has a process take part in sharing its device."""

    # The device coordinator goes by the steps of the guaranteed job.
    goes_by_steps = True

    def begin(self, process: Process) -> None:
        from paceline.features.sharing.process.hooks import share_device  # with torch; few share

        try:
            share_device(process)
        except OSError as error:
            # Without a gate it would slow the guaranteed job, so it must not run at all.
            raise ConfigError(
                f"{process.node} cannot share its device: {error}; its agent's log says more"
            ) from error


def make(here: Here) -> SharedProcess | None:
    """Return the part of a worker that shares a device; None: it shares none."""
    return SharedProcess() if here.spec.share.every else None
