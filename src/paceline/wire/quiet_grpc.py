"""gRPC, told to write nothing on its own: what fails is raised, and said once, by its caller.

Otherwise each stranger at a port is a line of gRPC's in the master's log, and a certificate that
is refused shows in the terminal before our error. gRPC reads the environment once, as it is
imported. It is put back at once, since scripts that use gRPC inherit it.
"""

import os

_VERBOSITY = "GRPC_VERBOSITY"
_is_set = _VERBOSITY in os.environ
os.environ.setdefault(_VERBOSITY, "NONE")

import grpc  # noqa: E402 - it reads the environment now
import grpc.aio  # noqa: E402

if not _is_set:
    del os.environ[_VERBOSITY]

__all__ = ["grpc"]
