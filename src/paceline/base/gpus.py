"""The GPUs of this machine, as NVIDIA's driver names them; torch is not imported for it.

gpu_uuids()    # ("GPU-5a3c…", "GPU-77d0…"), in the order of their places on the PCI bus
"""

import contextlib
import ctypes

_UUID_BYTES = 96


def has_driver() -> bool:
    """Say whether programs of this machine can use a GPU at all."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return True
    return False


def gpu_uuids() -> tuple[str, ...] | None:
    """Return the names of all GPUs that the driver gives us; None: it cannot be asked.

    A container may have the driver without NVML, the library that is asked here.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        return tuple(_uuid(nvml, index) for index in range(count.value))
    finally:
        nvml.nvmlShutdown()


def _uuid(nvml: ctypes.CDLL, index: int) -> str:
    """Return the name of one GPU; empty: it has none that we may see."""
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return ""
    if nvml.nvmlDeviceGetUUID(handle, name, _UUID_BYTES) != 0:
        return ""
    return name.value.decode(errors="replace")
