"""A table of a database as a dataset, ordered by a unique key.

Row numbers of SQL mean nothing without an order, and OFFSET reads what it skips. So every 1024th
key is kept, and rows are read as the range of keys in which they lie.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.optional import extra_for
from paceline.runtime.data.order import DEFAULT_SHARD_SIZE

with extra_for("`pl.SqlTable`"):
    import pyarrow as pa
    import sqlalchemy as sql

    from paceline.runtime.data.columns import arrow_schema, to_batch

_BLOCK_ROWS = 1024
_CACHED_BLOCKS = 64


class SqlTable:
    """Each row is a record; a batch is a ``Batch`` with one tensor per column.

    The table must not change during a job. Every process has one connection, used for reading
    only (enforced on SQLite and PostgreSQL).

    Args:
        url: as SQLAlchemy takes it, such as ``sqlite:///clicks.db``.
        table: its name, or ``schema.name``.
        key: a column without NULLs in which no value occurs twice; it gives the order.
        columns: name -> float32, float64, int32, int64, bool or str. NULL is NaN in a column of
            floats and an error in any other.

    Raises:
        ConfigError: the database cannot be reached, there is no such table or column, no key is
            named, or the key is not unique; when reading, a value of another type.
        PermanentError: when reading, rows were added or removed.
    """

    shard_size_hint = DEFAULT_SHARD_SIZE
    """Neighbouring rows are read together."""

    reads_in_thread = True
    """True: no code of the user is called."""

    def __init__(self, url: str, table: str, key: str | None, columns: Mapping[str, str]) -> None:
        self._url = sql.engine.make_url(url)
        self._types = arrow_schema(columns)
        self._name = table
        file = self._url.database or ""
        if self._url.get_backend_name() == "sqlite" and not Path(file).exists():
            raise ConfigError(
                f"no database {self._url.database!r}; check the url"
            ) from FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        self._reset()
        try:
            with self._connect() as connection:
                self._key_name = self._check(connection, key)
                self._first_keys, self._num_rows = self._sample_keys(connection)
        except sql.exc.SQLAlchemyError as error:
            raise ConfigError(f"{self._shown()} cannot be read: {error}") from error

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._engine: sql.Engine | None = None
        self._block = lru_cache(_CACHED_BLOCKS)(self._read_block)

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> Any:
        batch = self.__getitems__([index])
        return type(batch)(*(column[0] for column in batch))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        if self._pid != os.getpid():
            self._reset()  # forked: the parent's connection is not ours to use
        rows = [self._row(index) for index in indices]
        columns = zip(*rows, strict=True)
        arrays = {
            name: self._to_array(name, values)
            for name, values in zip(self._types, columns, strict=True)
        }
        try:
            return to_batch(pa.table(arrays))
        except ValueError as error:
            raise ConfigError(f"{self._shown()}: {error}") from error

    def close(self) -> None:
        """Close this process's connection."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        del state["_engine"], state["_block"], state["_pid"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _connect(self) -> sql.Connection:
        if self._engine is None:
            self._engine = sql.create_engine(self._url, pool_size=1, max_overflow=0)
            if self._engine.dialect.name == "sqlite":
                sql.event.listen(self._engine, "connect", _forbid_writes)
        return self._engine.connect().execution_options(postgresql_readonly=True)

    def _table(self, *more: str) -> sql.TableClause:
        schema, _, name = self._name.rpartition(".")
        names = dict.fromkeys([*self._types, *more])
        return sql.table(name, *map(sql.column, names), schema=schema or None)

    def _check(self, connection: sql.Connection, key: str | None) -> str:
        schema, _, name = self._name.rpartition(".")
        inspector = sql.inspect(connection)
        if not inspector.has_table(name, schema or None):
            tables = ", ".join(inspector.get_table_names(schema or None)) or "none"
            raise ConfigError(f"{self._shown()}: no such table; there are: {tables}")
        found = [column["name"] for column in inspector.get_columns(name, schema or None)]
        for column in [*self._types, *([key] if key else [])]:
            if column not in found:
                raise ConfigError(
                    f"{self._shown()}: no column {column!r}; it has {', '.join(found)}"
                )
        primary = inspector.get_pk_constraint(name, schema or None)["constrained_columns"]
        if not key:
            hint = f" (its primary key is {primary[0]!r})" if len(primary) == 1 else ""
            raise ConfigError(
                f"{self._shown()} has no order without a key; declare a column that is unique and "
                f"never NULL as key=...{hint}"
            )
        if primary != [key]:
            self._check_unique(connection, key)
        return key

    def _check_unique(self, connection: sql.Connection, key: str) -> None:
        table = self._table(key)
        column = table.c[key]
        counts = sql.select(
            sql.func.count(), sql.func.count(column), sql.func.count(column.distinct())
        )
        num_rows, num_set, num_distinct = connection.execute(counts.select_from(table)).one()
        if num_rows != num_distinct:
            raise ConfigError(
                f"{self._shown()}: {key!r} is no key: {num_rows - num_set} NULLs and "
                f"{num_set - num_distinct} repeated values in {num_rows} rows; "
                "declare a column that is unique and never NULL"
            )

    def _sample_keys(self, connection: sql.Connection) -> tuple[list[Any], int]:
        """The first key of each block of rows, and the number of rows."""
        table = self._table(self._key_name)
        key = table.c[self._key_name]
        numbered = sql.select(
            key.label("k"), (sql.func.row_number().over(order_by=key) - 1).label("n")
        ).subquery()
        firsts = (
            sql.select(numbered.c.k).where(numbered.c.n % _BLOCK_ROWS == 0).order_by(numbered.c.n)
        )
        num_rows = connection.execute(sql.select(sql.func.count()).select_from(table)).scalar_one()
        return list(connection.execute(firsts).scalars()), int(num_rows)

    def _row(self, index: int) -> tuple[Any, ...]:
        if not 0 <= index < self._num_rows:
            raise IndexError(f"record {index} of {self._num_rows} in {self._shown()}")
        row: tuple[Any, ...] = self._block(index // _BLOCK_ROWS)[index % _BLOCK_ROWS]
        return row

    def _read_block(self, block: int) -> list[tuple[Any, ...]]:
        table = self._table(self._key_name)
        key = table.c[self._key_name]
        query = sql.select(*(table.c[name] for name in self._types)).order_by(key)
        query = query.where(key >= self._first_keys[block])
        if block + 1 < len(self._first_keys):
            query = query.where(key < self._first_keys[block + 1])
        expected = min(_BLOCK_ROWS, self._num_rows - block * _BLOCK_ROWS)
        with self._connect() as connection:
            # One more than expected, to notice rows that were added.
            rows = [tuple(row) for row in connection.execute(query.limit(expected + 1))]
        if len(rows) != expected:
            raise PermanentError(
                f"{self._shown()} was changed while it was being read: {len(rows)} rows from key "
                f"{self._first_keys[block]!r} on, expected {expected}; "
                "a table must stay as it is during a job"
            )
        return rows

    def _to_array(self, name: str, values: Sequence[Any]) -> pa.Array:
        try:
            return pa.array(values, self._types[name])
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ConfigError(
                f"{self._shown()}: column {name!r} holds a value that is no "
                f"{self._types[name]}: {error}"
            ) from error

    def _shown(self) -> str:
        return f"table {self._name} of {self._url.render_as_string(hide_password=True)}"


def _forbid_writes(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")
