"""Torch's gloo has no TLS in the packages that we use, as the page on security says."""

import os
import subprocess
import sys

CODE = """
from torch._C import _distributed_c10d as c10d
print(c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1"))
"""


def device(transport: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GLOO_DEVICE_TRANSPORT": transport}
    command = [sys.executable, "-c", CODE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_gloo_over_tls_is_not_in_torch() -> None:
    """When it is, sums of gradients can be encrypted: change the page, and the decision 48."""
    plain, encrypted = device("TCP"), device("TCP_TLS")
    assert plain.returncode == 0, plain.stderr
    assert "unsupported gloo device" in encrypted.stderr
