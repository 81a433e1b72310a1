"""Millstream: streaming SQL with event time, in the process.

    import millstream as ms, polars as pl

    with ms.Session() as s:
        s.register("airports", pl.read_csv("airports.csv"))
        r = s.sql("SELECT city, count(*) AS n FROM 'flights.parquet' "
                  "JOIN airports ON origin = code GROUP BY city")
        print(pl.DataFrame(r))

In the examples of its methods `s` is such a session with one worker, and has a table `t` of the
rows ('a', 1), ('b', 2) and ('a', 3), with the columns `k` and `x`; `ms`, `pa` and `pc` are this
package, pyarrow and its functions.
"""

from __future__ import annotations

import atexit as _atexit
import datetime as _datetime
import os as _os
import sys as _sys
import warnings as _warnings
import weakref as _weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence, Union

# Such an interpreter does not find the library below at all, and would say nothing about why.
if "t" in getattr(_sys, "abiflags", ""):
    raise ImportError(
        "Millstream does not run in a free-threaded Python, whose extension modules have another "
        "binary interface: use CPython 3.10 or newer with the global interpreter lock "
        f"(this is {_sys.version.split()[0]}t)"
    )

from . import _aggregates, _display, _functions, _millstream
from ._errors import (
    Aborted,
    Bug,
    Diagnostic,
    Error,
    Interrupted,
    RunError,
    SqlError,
    UsageError,
)
from ._millstream import Job, Source, __version__

if TYPE_CHECKING:
    import os

    import pandas
    import polars
    import pyarrow

    from ._plot import Plot
    from ._ray import on_ray

__all__ = [
    "Aborted",
    "Batch",
    "Bug",
    "Diagnostic",
    "Error",
    "Interrupted",
    "Job",
    "Plot",
    "Relation",
    "RunError",
    "Session",
    "Source",
    "SqlError",
    "UsageError",
    "__version__",
    "load_ipython_extension",
    "metrics",
    "on_ray",
]

# The sessions, with their workers.
_sessions: _weakref.WeakKeyDictionary[_millstream.Session, int] = _weakref.WeakKeyDictionary()
_processors = _os.cpu_count() or 1
_warned = False


def _warn_of_workers() -> None:
    """Once: the threads of several sessions get in each other's way."""
    global _warned
    if _warned or len(_sessions) < 2:
        return
    open_ = [workers for session, workers in list(_sessions.items()) if not session.closed]
    if len(open_) > 1 and sum(open_) > _processors:
        _warned = True
        _warnings.warn(
            f"{len(open_)} sessions have {sum(open_)} workers, and there are {_processors} "
            "processors: close sessions, or give them fewer workers",
            RuntimeWarning,
            stacklevel=3,
        )


@_atexit.register
def _end() -> None:
    """Threads of jobs must not outlive the interpreter."""
    for session in list(_sessions):
        try:
            session.close()
        except Error:
            pass  # Of the process before a fork.


def __getattr__(name: str) -> Any:
    """What few programs use is imported when it is: an import of this package takes less long."""
    if name == "Plot":
        from ._plot import Plot

        return Plot
    if name == "on_ray":
        from ._ray import on_ray

        return on_ray
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")


def metrics() -> str:
    """The counters of functions in Python, of all sessions of this process, for Prometheus.

    It is a page in the format OpenMetrics, which the program serves beside its own.

    >>> ms.metrics().splitlines()[1]
    '# TYPE millstream_python_calls counter'
    """
    from . import _metrics

    return _metrics.page()


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext millstream`: the magics `%sql` and `%%sql`."""
    from . import _magic

    _magic.load(shell)


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
        """The rows as a table of pyarrow.

        >>> s.sql("SELECT k, x FROM t").collect().arrow()["x"].to_pylist()
        [1, 2, 3]
        """
        import pyarrow

        return pyarrow.table(self._rows)

    def polars(self) -> polars.DataFrame:
        """The rows as a data frame of Polars.

        >>> s.sql("SELECT k, x FROM t").collect().polars().shape
        (3, 2)
        """
        import polars

        return polars.DataFrame(self._rows)

    def pandas(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas.

        >>> s.sql("SELECT k, x FROM t").collect().pandas()["x"].sum().item()
        6
        """
        return self.arrow().to_pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows as tuples.

        >>> s.sql("SELECT k, x FROM t").collect().fetchall()
        [('a', 1), ('b', 2), ('a', 3)]
        """
        return self._rows.fetchall()

    def _repr_html_(self) -> str:
        return _display.table_html(self.columns, None, self.fetchall())

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

    def next_within(self, timeout: float) -> Optional[Batch]:
        """The next batch, or `None` at the end; `TimeoutError` if it does not come in time.

        >>> with s.sql("SELECT x FROM t").batches() as batches:
        ...     batches.next_within(60.0).num_rows
        3
        """
        rows = self._batches.next_within(timeout)
        return None if rows is None else Batch(rows)

    @property
    def progress(self) -> Optional[dict[str, Any]]:
        """How far the query is, as of a job: its report behind the end, `None` before that is known."""
        return self._batches.progress

    def close(self) -> None:
        """Drops the query.

        >>> batches = s.sql("SELECT x FROM t").batches()
        >>> batches.close()
        """
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

    @property
    def types(self) -> list[str]:
        """The types of its columns, as Arrow calls them."""
        return self._relation.types

    def explain(self, format: str = "text") -> str:
        """How it would run, as "text", "json" or "dot".

        >>> s.sql("SELECT sum(x) FROM t").explain("json")[0]
        '{'
        """
        return self._relation.explain(format)

    def plot(self, x: str, *y: str, kind: str = "line") -> Plot:
        """As `collect`, as a picture: columns `y` over column `x`, all others if none is named.

        `kind` is "line" or "bar". A notebook shows it; `save(path)` writes the SVG.

        >>> s.sql("SELECT x, x * x AS y FROM t").plot("x", "y").save("squares.svg")
        """
        from ._plot import Plot

        return Plot(self.collect(), x, y, kind)

    def collect(self) -> Batch:
        """Runs it to its end and gives all of its rows.

        After Ctrl-C a query whose inputs do not end gives the rows so far; others raise
        `Interrupted`.

        >>> batch = s.sql("SELECT sum(x) AS total FROM t").collect()
        >>> batch.num_rows, batch.columns
        (1, ['total'])
        """
        return Batch(self._relation.collect())

    def arrow(self) -> pyarrow.Table:
        """As `collect`, as a table of pyarrow.

        >>> s.sql("SELECT sum(x) AS total FROM t").arrow().to_pydict()
        {'total': [6]}
        """
        return self.collect().arrow()

    def polars(self) -> polars.DataFrame:
        """As `collect`, as a data frame of Polars.

        >>> s.sql("SELECT sum(x) AS total FROM t").polars().item()
        6
        """
        return self.collect().polars()

    def pandas(self) -> pandas.DataFrame:
        """As `collect`, as a data frame of pandas.

        >>> list(s.sql("SELECT sum(x) AS total FROM t").pandas().columns)
        ['total']
        """
        return self.collect().pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """As `collect`, as tuples.

        >>> s.sql("SELECT k, sum(x) FROM t GROUP BY k ORDER BY k").fetchall()
        [('a', 4), ('b', 2)]
        """
        return self.collect().fetchall()

    def batches(self) -> Batches:
        """Runs it, and gives rows as they come. A slow reader holds the query back.

        >>> with s.sql("SELECT x FROM t WHERE x > 1").batches() as batches:
        ...     sum(batch.num_rows for batch in batches)
        2
        """
        return Batches(self._relation.batches())

    def run(self, timeout: Optional[float] = None) -> dict[str, Any]:
        """Runs statements that give no rows to their end, and gives a report.

        >>> report = s.sql("INSERT INTO 'odd.csv' SELECT x FROM t WHERE x % 2 = 1").run()
        >>> report["rows_in"], open("odd.csv").read().split()
        (3, ['x', '1', '3'])
        """
        return self._relation.run(timeout)

    def start(self) -> Job:
        """Starts statements that give no rows, in the background.

        >>> job = s.sql("INSERT INTO 'all.csv' SELECT k, x FROM t").start()
        >>> job.wait(60.0)["rows_in"], job.done
        (3, True)
        """
        return self._relation.start()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._relation.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._relation.__arrow_c_schema__()

    def _repr_html_(self) -> str:
        return _display.relation_html(self)

    def __repr__(self) -> str:
        kind = "query" if self._relation.is_query else "statements"
        return f"<millstream.Relation, {kind}: {' '.join(self.sql.split())}>"


class Session:
    """An engine in this process: tables, views, functions and settings.

    `workers` threads run each job, as many as there are processors if that is not said. `settings`
    are those of `SET`. `spill_dir` is where rows and groups go that do not fit memory.

    `state` is a directory, or `s3://bucket/path`, where jobs keep checkpoints: those that have a
    name, by `job` or by that of `sql`. `pool` are the addresses of memory servers.

    Under `mpirun` or `srun` each process is a node of the jobs, and all make the same calls.

    >>> with ms.Session(workers=2, settings={"millstream.batch_rows": 1024}) as session:
    ...     session.sql("SELECT 1 AS one").fetchall()
    [(1,)]
    """

    def __init__(
        self,
        *,
        workers: Optional[int] = None,
        settings: Optional[Mapping[str, object]] = None,
        spill_dir: Union[str, os.PathLike[str], None] = None,
        state: Union[str, os.PathLike[str], None] = None,
        job: Optional[str] = None,
        pool: Union[str, Sequence[str], None] = None,
        pool_token_file: Union[str, os.PathLike[str], None] = None,
        pool_certs: Union[str, os.PathLike[str], None] = None,
    ) -> None:
        if workers is not None and workers < 0:
            raise UsageError(f"a node cannot have {workers} workers", "choose 1 to 1024 workers")
        addresses = pool.split(",") if isinstance(pool, str) else pool
        self._session = _millstream.Session(
            workers=workers,
            settings=None if settings is None else dict(settings),
            spill_dir=spill_dir,
            state=None if state is None else _place(_os.fspath(state)),
            job=job,
            pool=None if addresses is None else [address.strip() for address in addresses],
            pool_token_file=pool_token_file,
            pool_certs=pool_certs,
        )
        self._functions: dict[str, _millstream.FunctionCounts] = {}
        self._failing: dict[str, _functions.NullOnError] = {}
        # Functions with a table of the rows that failed.
        self._kept: set[str] = set()
        _sessions[self._session] = workers or _processors
        _warn_of_workers()

    def sql(
        self,
        text: str,
        *,
        job: Optional[str] = None,
        resume: Union[str, int] = "latest",
        evolve: bool = False,
        take_over: bool = False,
    ) -> Relation:
        """Plans SQL. Definitions are in force at once; nothing else runs yet.

        Statements that give no rows keep checkpoints where the session has a `state`. `job` is
        their name there, by which they go on when they are run again, in this process or another.
        `resume` is the checkpoint from which they do: "latest", "none" to begin anew, its number,
        or the name of one that is kept. `evolve` lets the statements or functions be others than
        those that were saved, and `take_over` ends a run of the job that may be alive elsewhere.

        >>> s.sql("SELECT k, sum(x) AS x FROM t GROUP BY k ORDER BY k").fetchall()
        [('a', 4), ('b', 2)]
        """
        return Relation(
            self._session.sql(
                text, job=job, resume=str(resume), evolve=evolve, take_over=take_over
            )
        )

    @property
    def rank(self) -> int:
        """The number of this process among those of `mpirun` or `srun`, which counts from 0.

        Rows are given to process 0; the others get none of them.
        """
        return self._session.rank

    @property
    def nodes(self) -> int:
        """How many processes `mpirun` or `srun` has started, 1 without them."""
        return self._session.nodes

    def explain(self, text: str, format: str = "text") -> str:
        """How SQL would run.

        >>> "scan" in s.explain("SELECT count(*) FROM t").lower()
        True
        """
        return self.sql(text).explain(format)

    def register(self, name: str, table: object) -> None:
        """Makes a table of anything with `__arrow_c_stream__`, which is read whole now.

        Its buffers are used where they are. A table that was registered before is replaced.

        >>> s.register("cities", pa.table({"code": ["JFK"], "city": ["New York"]}))
        >>> s.sql("SELECT city FROM cities").fetchall()
        [('New York',)]
        """
        self._session.register(name, table)

    def source(
        self,
        name: str,
        columns: object,
        *,
        event_time: Optional[str] = None,
        delay: Union[str, _datetime.timedelta, None] = None,
        on_bad: str = "fail",
        max_bytes: Optional[int] = None,
    ) -> Source:
        """Makes a table without an end, to which the program appends.

        `columns` are a schema of pyarrow, or names with their types: those of SQL, as
        "timestamp(3)", of pyarrow or of Python. `event_time` names the column of event time, `delay`
        how much later than others a row may come: "5 s". A value that its column cannot have ends
        `append` if `on_bad` is "fail"; with "skip" its row is left out, counted, and in `name__bad`.

        >>> clicks = s.source("clicks", {"ts": "timestamp(3)", "n": "bigint"}, event_time="ts")
        >>> clicks.append(pa.table({"ts": ["2024-05-06 07:08:09"], "n": [5]}))
        >>> clicks.close()
        >>> s.sql("SELECT n FROM clicks").fetchall()
        [(5,)]
        """
        if max_bytes is not None and max_bytes < 0:
            raise UsageError(f"max_bytes cannot be {max_bytes}", "0 or more")
        schema = columns if hasattr(columns, "__arrow_c_schema__") else _schema(self, columns)
        watermark = _watermark(event_time, delay)
        return self._session.add_source(name, schema, watermark, on_bad, max_bytes)

    def function(
        self,
        returns: object,
        *,
        args: Optional[Sequence[object]] = None,
        name: Optional[str] = None,
        volatility: str = "immutable",
        on_error: str = "raise",
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Makes a function of SQL of one in Python, over arrays of pyarrow.

        It gives an array of the type `returns`, as long as its arguments. Their types are `args`,
        or what annotations say. Its name in SQL has small letters. `volatility` is "immutable" if
        its result depends on the arguments alone, "stable" if it is the same while a query runs,
        else "volatile". With `on_error="null"` an exception does not end the query: the batch is
        halved until the rows are found that raise one, and these give NULL and are counted. With
        "bad" the last of them are also in a table `name__bad`, with the reason and the arguments.

        >>> @s.function(pa.int64())
        ... def twice(x: pa.Int64Array) -> pa.Array:
        ...     return pc.multiply(x, 2)
        >>> s.sql("SELECT twice(x) FROM t").fetchall()
        [(2,), (4,), (6,)]
        """

        def add(
            name: str, types: object, volatility: str, call: Callable[..., Any], fingerprint: int
        ) -> None:
            self._functions[name] = self._session.add_function(
                name, types, volatility, call, fingerprint
            )
            self._failing.pop(name, None)
            if isinstance(call, _functions.NullOnError):
                self._failing[name] = call

        def keep(name: str) -> Callable[[str, Sequence[object]], None]:
            table = f"{name}__bad"
            if table in self.tables and name not in self._kept:
                raise UsageError(
                    f"there is a table '{table}' already", "give the function another name: name='f'"
                )
            rows = self._session.add_failed_rows(table, name)
            self._kept.add(name)
            return rows.add

        return _functions.function(self, name, returns, args, volatility, on_error, add, keep)

    def aggregate(
        self,
        returns: object,
        *,
        state: Mapping[str, object],
        args: Optional[Sequence[object]] = None,
        name: Optional[str] = None,
    ) -> Callable[[type], type]:
        """Makes an aggregate of SQL of a class in Python.

        `state` are names and types of what is kept for each group: a tuple of as many values.
        `start()` gives that of no rows. `update(state, x, …)` gets arrays of pyarrow, with the rows
        of one group in a batch, and gives the state with them. `merge(state, other)` gives that of
        both, and `value(state)` the result. Types are as for `function`.

        >>> @s.aggregate(int, state={"product": int})
        ... class product:
        ...     def start(self):
        ...         return 1
        ...     def update(self, state, x: pa.Int64Array):
        ...         return state[0] * pc.product(x).as_py()
        ...     def merge(self, state, other):
        ...         return state[0] * other[0]
        ...     def value(self, state):
        ...         return state[0]
        >>> s.sql("SELECT product(x) FROM t").fetchall()
        [(6,)]
        """

        def add(
            name: str,
            types: object,
            arguments: int,
            make: Callable[[], _aggregates.Groups],
            fingerprint: int,
        ) -> None:
            self._functions[name] = self._session.add_aggregate(
                name, types, arguments, make, fingerprint
            )

        return _aggregates.aggregate(self, name, returns, args, state, add)

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """Functions and aggregates in Python: calls, rows, seconds, and seconds of waiting for the lock.

        Those with `on_error="null"` or "bad" also have `failed_rows`.
        """
        made = {name: counts.shown() for name, counts in self._functions.items()}
        for name, call in self._failing.items():
            made[name]["failed_rows"] = call.failed_rows
        return made

    def set(self, key: str, value: object) -> None:
        """Changes a setting, as `SET` does.

        >>> s.set("millstream.batch_rows", 1024)
        """
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
        """Drops the jobs that run, and ends the session.

        >>> session = ms.Session(workers=1)
        >>> session.close()
        >>> session.closed
        True
        """
        self._session.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self._session.__exit__(*exception)

    def __repr__(self) -> str:
        return repr(self._session)


def _place(state: str) -> str:
    """The place of checkpoints, which `os.chdir` does not move."""
    return state if "://" in state else _os.path.abspath(state)


_UNITS = {
    "ms": "MILLISECOND",
    "s": "SECOND",
    "min": "MINUTE",
    "m": "MINUTE",
    "h": "HOUR",
    "d": "DAY",
}


def _watermark(event_time: Optional[str], delay: Union[str, _datetime.timedelta, None]) -> str:
    """The declaration of event time in SQL."""
    if event_time is None:
        if delay is not None:
            raise UsageError("a delay needs a column of event time", "event_time='ts'")
        return ""
    column = '"' + event_time.replace('"', '""') + '"'
    if delay is None:
        return f"WATERMARK FOR {column} AS {column}"
    number, unit = _amount(delay)
    return f"WATERMARK FOR {column} AS {column} - INTERVAL '{number}' {unit}"


def _amount(delay: object) -> tuple[int, str]:
    """A length of time as a number and a unit of SQL."""
    if isinstance(delay, _datetime.timedelta) and delay >= _datetime.timedelta():
        return delay // _datetime.timedelta(milliseconds=1), "MILLISECOND"
    number, _, unit = delay.strip().partition(" ") if isinstance(delay, str) else ("", "", "")
    if not number.isdecimal() or unit.strip() not in _UNITS:
        raise UsageError(f"{delay!r} is no delay", "'500 ms', '5 s', '2 min', '1 h'")
    return int(number), _UNITS[unit.strip()]


def _schema(session: Session, columns: object) -> object:
    """The schema of columns whose types are those of SQL, of pyarrow or of Python."""
    if not isinstance(columns, Mapping):
        raise UsageError(
            "the columns of a source are a mapping from names to types, or a schema",
            "{'ts': 'timestamp(3)', 'user': 'bigint'}",
        )
    if not columns:
        raise UsageError("a table has a column", "{'ts': 'timestamp(3)', 'user': 'bigint'}")
    if all(isinstance(column, str) for column in columns.values()):
        casts = ", ".join(
            f"CAST(NULL AS {type_}) AS " + '"' + str(name).replace('"', '""') + '"'
            for name, type_ in columns.items()
        )
        return session.sql(f"SELECT {casts}")
    import pyarrow

    types = [(str(name), _functions.type_of(session, of)) for name, of in columns.items()]
    return pyarrow.schema(types)
