"""Millstream: streaming SQL with event time, in the process.

    import millstream as ms, polars as pl

    with ms.Session() as s:
        s.register("airports", pl.read_csv("airports.csv"))
        r = s.sql("SELECT city, count(*) AS n FROM 'flights.parquet' "
                  "JOIN airports ON origin = code GROUP BY city")
        print(pl.DataFrame(r))
"""

from __future__ import annotations

import atexit as _atexit
import weakref as _weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence, Union

from . import _functions, _millstream
from ._errors import Bug, Diagnostic, Error, Interrupted, RunError, SqlError, UsageError
from ._millstream import Job, Source, __version__

if TYPE_CHECKING:
    import os

    import pandas
    import polars
    import pyarrow

__all__ = [
    "Batch",
    "Bug",
    "Diagnostic",
    "Error",
    "Interrupted",
    "Job",
    "Relation",
    "RunError",
    "Session",
    "Source",
    "SqlError",
    "UsageError",
    "__version__",
]

_sessions: _weakref.WeakSet[_millstream.Session] = _weakref.WeakSet()


@_atexit.register
def _end() -> None:
    """Threads of jobs must not outlive the interpreter."""
    for session in list(_sessions):
        try:
            session.close()
        except Error:
            pass  # Of the process before a fork.


class Batch:
    """Rows of a query in memory, for other libraries: `polars.DataFrame(batch)`."""

    __slots__ = ("_rows",)

    def __init__(self, rows: _millstream.Rows) -> None:
        self._rows = rows

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self._rows.num_rows

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._rows.columns

    def __len__(self) -> int:
        return self._rows.num_rows

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._rows.__arrow_c_array__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._rows.__arrow_c_schema__()

    def arrow(self) -> pyarrow.Table:
        """The rows as a table of pyarrow."""
        import pyarrow

        return pyarrow.table(self._rows)

    def polars(self) -> polars.DataFrame:
        """The rows as a data frame of Polars."""
        import polars

        return polars.DataFrame(self._rows)

    def pandas(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas."""
        return self.arrow().to_pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows as tuples."""
        return self._rows.fetchall()

    def __repr__(self) -> str:
        return f"<millstream.Batch, {self.num_rows} rows of {', '.join(self.columns)}>"


class Batches:
    """The batches of a query that runs. Closing it, or leaving its `with`, drops the query."""

    __slots__ = ("_batches",)

    def __init__(self, batches: _millstream.Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return Batch(next(self._batches))

    def close(self) -> None:
        """Drops the query."""
        self._batches.close()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Relation:
    """A planned text of SQL. A query runs each time that it is read."""

    __slots__ = ("_relation",)

    def __init__(self, relation: _millstream.Relation) -> None:
        self._relation = relation

    @property
    def sql(self) -> str:
        """Its text."""
        return self._relation.sql

    @property
    def columns(self) -> list[str]:
        """The names of its columns; none if it gives no rows."""
        return self._relation.columns

    @property
    def bounded(self) -> bool:
        """Whether its inputs end by themselves."""
        return self._relation.bounded

    def explain(self, format: str = "text") -> str:
        """How it would run, as "text", "json" or "dot"."""
        return self._relation.explain(format)

    def collect(self) -> Batch:
        """Runs it to its end and gives all of its rows.

        After Ctrl-C a query whose inputs do not end gives the rows so far; others raise
        `Interrupted`.
        """
        return Batch(self._relation.collect())

    def arrow(self) -> pyarrow.Table:
        """As `collect`, as a table of pyarrow."""
        return self.collect().arrow()

    def polars(self) -> polars.DataFrame:
        """As `collect`, as a data frame of Polars."""
        return self.collect().polars()

    def pandas(self) -> pandas.DataFrame:
        """As `collect`, as a data frame of pandas."""
        return self.collect().pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """As `collect`, as tuples."""
        return self.collect().fetchall()

    def batches(self) -> Batches:
        """Runs it, and gives rows as they come. A slow reader holds the query back."""
        return Batches(self._relation.batches())

    def run(self, timeout: Optional[float] = None) -> dict[str, Any]:
        """Runs statements that give no rows to their end, and gives a report."""
        return self._relation.run(timeout)

    def start(self) -> Job:
        """Starts statements that give no rows, in the background."""
        return self._relation.start()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._relation.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._relation.__arrow_c_schema__()

    def __repr__(self) -> str:
        kind = "query" if self._relation.is_query else "statements"
        return f"<millstream.Relation, {kind}: {' '.join(self.sql.split())}>"


class Session:
    """An engine in this process: tables, views, functions and settings.

    `workers` threads run each job, as many as there are processors if that is not said. `settings`
    are those of `SET`. `spill_dir` is where rows and groups go that do not fit memory.
    """

    def __init__(
        self,
        *,
        workers: Optional[int] = None,
        settings: Optional[Mapping[str, object]] = None,
        spill_dir: Union[str, os.PathLike[str], None] = None,
    ) -> None:
        self._session = _millstream.Session(
            workers=workers,
            settings=None if settings is None else dict(settings),
            spill_dir=spill_dir,
        )
        self._functions: dict[str, _millstream.FunctionCounts] = {}
        _sessions.add(self._session)

    def sql(self, text: str) -> Relation:
        """Plans SQL. Definitions are in force at once; nothing else runs yet."""
        return Relation(self._session.sql(text))

    def explain(self, text: str, format: str = "text") -> str:
        """How SQL would run."""
        return self.sql(text).explain(format)

    def register(self, name: str, table: object) -> None:
        """Makes a table of anything with `__arrow_c_stream__`, which is read whole now.

        Its buffers are used where they are. A table that was registered before is replaced.
        """
        self._session.register(name, table)

    def source(
        self,
        name: str,
        columns: object,
        *,
        event_time: Optional[str] = None,
        delay: Optional[str] = None,
        max_bytes: Optional[int] = None,
    ) -> Source:
        """Makes a table without an end, to which the program appends.

        `columns` are a schema of pyarrow, or names with their types: those of SQL, as
        "timestamp(3)", or of pyarrow. `event_time` names the column of event time, and `delay`
        how much later than others a row may come: "5 s".
        """
        schema = columns if hasattr(columns, "__arrow_c_schema__") else _schema(self, columns)
        return self._session.add_source(name, schema, _watermark(event_time, delay), max_bytes)

    def function(
        self,
        returns: object,
        *,
        args: Optional[Sequence[object]] = None,
        name: Optional[str] = None,
        volatility: str = "immutable",
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Makes a function of SQL of one in Python, over arrays of pyarrow.

        It gives an array of the type `returns`, as long as its arguments. Their types are `args`,
        or what annotations say. Its name in SQL has small letters. `volatility` is "immutable" if
        its result depends on the arguments alone, "stable" if it is the same while a query runs,
        else "volatile".
        """

        def add(name: str, types: object, volatility: str, call: Callable[..., Any]) -> None:
            self._functions[name] = self._session.add_function(name, types, volatility, call)

        return _functions.function(self, name, returns, args, volatility, add)

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Functions in Python: calls, rows, seconds, and seconds of waiting for the lock."""
        return {name: counts.shown() for name, counts in self._functions.items()}

    def set(self, key: str, value: object) -> None:
        """Changes a setting, as `SET` does."""
        self._session.set(key, value)

    @property
    def tables(self) -> list[str]:
        """The names of tables and views."""
        return self._session.tables()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._session.closed

    def close(self) -> None:
        """Drops the jobs that run, and ends the session."""
        self._session.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._session)


_UNITS = {
    "ms": "MILLISECOND",
    "s": "SECOND",
    "min": "MINUTE",
    "m": "MINUTE",
    "h": "HOUR",
    "d": "DAY",
}


def _watermark(event_time: Optional[str], delay: Optional[str]) -> str:
    """The declaration of event time in SQL."""
    if event_time is None:
        if delay is not None:
            raise UsageError("a delay needs a column of event time", "event_time='ts'")
        return ""
    column = '"' + event_time.replace('"', '""') + '"'
    if delay is None:
        return f"WATERMARK FOR {column} AS {column}"
    number, _, unit = delay.strip().partition(" ")
    if not number.isdigit() or unit.strip() not in _UNITS:
        raise UsageError(f"'{delay}' is no delay", "'500 ms', '5 s', '2 min', '1 h'")
    return f"WATERMARK FOR {column} AS {column} - INTERVAL '{number}' {_UNITS[unit.strip()]}"


def _schema(session: Session, columns: object) -> object:
    """The schema of columns whose types are texts of SQL, or types of pyarrow."""
    if not isinstance(columns, Mapping):
        raise UsageError(
            "the columns of a source are a mapping from names to types, or a schema",
            "{'ts': 'timestamp(3)', 'user': 'bigint'}",
        )
    if all(isinstance(column, str) for column in columns.values()):
        casts = ", ".join(
            f"CAST(NULL AS {type_}) AS " + '"' + str(name).replace('"', '""') + '"'
            for name, type_ in columns.items()
        )
        return session.sql(f"SELECT {casts}")
    import pyarrow

    return pyarrow.schema(list(columns.items()))
