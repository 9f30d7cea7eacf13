"""Hardware of this machine, as the kernel tells it: nothing here needs a device's library."""

from pathlib import Path

CPUS = Path("/proc/cpuinfo")
DEVICES = Path("/proc/driver/nvidia/gpus")


def hardware_kind(cores: float | None, cpus: Path = CPUS, devices: Path = DEVICES) -> str:
    """Name what nodes of one class have in common: their accelerators and processor, and the quota.

    Args:
        cores: the cpu quota in force; None: there is none.
        cpus: where the kernel lists its processors.
        devices: where the driver has a folder for each accelerator.
    """
    names = {_field(info, "Model") for info in sorted(devices.glob("*/information"))}
    parts = [*sorted(names), _field(cpus, "model name")]
    quota = [] if cores is None else [f"{cores:g} cores"]
    return ", ".join([part for part in parts if part] + quota)


def _field(path: Path, name: str) -> str:
    """The first value of this name in lines ``name : value``; empty: there is none."""
    if not path.exists():
        return ""
    for line in path.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
