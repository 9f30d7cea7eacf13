"""Features of a job before and while it trains, by which earlier jobs are compared with it."""

import msgspec


class JobFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """Features that tell jobs apart (DLRover-RM, Algorithm 1); None: not known."""

    user: str | None = None
    script: str | None = None
    arguments: str | None = None
    """Arguments of the script, as one line: they often name the data."""
    strategy: str | None = None
    mode: str | None = None
    batch_size: int | None = None
    """Samples in a global batch."""
    data: str | None = None
    """Number, size and digest of the files of its dataset."""
    num_samples: int | None = None
    """Samples in one epoch."""
    dense_bytes: int | None = None
    """Bytes of the parameters that are in no embedding table."""
    table_rows: dict[str, int] | None = None
    """Number of rows, by embedding table."""
    table_bytes: int | None = None
    """Bytes of the values of all rows."""
