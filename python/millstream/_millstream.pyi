import os
from typing import Any, Callable, Generator, Optional, Sequence, Union, final

__all__ = [
    "Array",
    "Batches",
    "FailedRows",
    "FunctionCounts",
    "Job",
    "Relation",
    "Rows",
    "Session",
    "Source",
    "__version__",
    "count_failed_rows",
    "function_counts",
]

__version__: str

def count_failed_rows(function: str, rows: int) -> None: ...
def function_counts() -> dict[str, dict[str, Any]]: ...

@final
class Session:
    def __new__(
        cls,
        *,
        workers: Optional[int] = None,
        settings: Optional[dict[str, object]] = None,
        spill_dir: Union[str, os.PathLike[str], None] = None,
        state: Optional[str] = None,
        job: Optional[str] = None,
        pool: Optional[list[str]] = None,
        pool_token_file: Union[str, os.PathLike[str], None] = None,
        pool_certs: Union[str, os.PathLike[str], None] = None,
    ) -> Session: ...
    @property
    def rank(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    def sql(
        self,
        text: str,
        *,
        job: Optional[str] = None,
        resume: str = "latest",
        evolve: bool = False,
        take_over: bool = False,
    ) -> Relation: ...
    def register(self, name: str, table: object) -> None: ...
    def add_source(
        self,
        name: str,
        schema: object,
        watermark: str,
        on_bad: str,
        max_bytes: Optional[int] = None,
    ) -> Source: ...
    def add_function(
        self,
        name: str,
        types: object,
        volatility: str,
        call: Callable[..., Any],
        fingerprint: int,
    ) -> FunctionCounts: ...
    def add_failed_rows(self, table: str, function: str) -> FailedRows: ...
    def add_aggregate(
        self,
        name: str,
        types: object,
        arguments: int,
        make: Callable[[], object],
        fingerprint: int,
    ) -> FunctionCounts: ...
    def set(self, key: str, value: object) -> None: ...
    def tables(self) -> list[str]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Session: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Relation:
    @property
    def sql(self) -> str: ...
    @property
    def columns(self) -> list[str]: ...
    @property
    def types(self) -> list[str]: ...
    @property
    def bounded(self) -> bool: ...
    @property
    def is_query(self) -> bool: ...
    def explain(self, format: str = "text") -> str: ...
    def collect(self) -> Rows: ...
    def batches(self) -> Batches: ...
    def run(self, timeout: Optional[float] = None) -> dict[str, Any]: ...
    def start(self) -> Job: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

@final
class Batches:
    def __iter__(self) -> Batches: ...
    def __next__(self) -> Rows: ...
    def next_within(self, timeout: Optional[float]) -> Optional[Rows]: ...
    @property
    def progress(self) -> Optional[dict[str, Any]]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Batches: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Rows:
    @property
    def num_rows(self) -> int: ...
    @property
    def columns(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
    def __arrow_c_schema__(self) -> object: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...

@final
class Array:
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...
    def __arrow_c_schema__(self) -> object: ...

@final
class FunctionCounts:
    def shown(self) -> dict[str, Any]: ...

@final
class FailedRows:
    def add(self, reason: str, args: Sequence[object]) -> None: ...

@final
class Job:
    """Statements that run in the background. `await job` waits for their end, as `wait` does."""

    @property
    def sql(self) -> str:
        """Their text."""
    @property
    def done(self) -> bool:
        """Whether they have ended, well or not."""
    @property
    def progress(self) -> Optional[dict[str, Any]]:
        """How far they are; `None` before that is known."""
    @property
    def messages(self) -> list[str]:
        """What was said about their checkpoints so far."""
    def stop(self) -> None:
        """Ends their inputs: what was read is finished and published.

        Where they keep checkpoints, a last one is taken, with which they go on when they are run
        again.
        """
    def abort(self) -> None:
        """Drops them: nothing of what runs is published."""
    def wait(self, timeout: Optional[float] = None) -> dict[str, Any]:
        """Waits for their end, and gives a report. After Ctrl-C they go on."""
    def _repr_html_(self) -> str: ...
    def _ipython_display_(self) -> None: ...
    def __await__(self) -> Generator[Any, None, dict[str, Any]]: ...

@final
class Source:
    """The program's end of a table without an end. Leaving its `with` closes it."""

    def append(self, table: object, timeout: Optional[float] = None) -> None:
        """Appends the rows of anything with `__arrow_c_stream__`.

        Columns are found by their names, and values are converted to their types. Waits while too
        many bytes wait for queries, `timeout` seconds at most. If a row cannot be one of the table,
        none of its batch is appended, unless the source skips such rows.
        """
    def close(self) -> None:
        """No more rows come: queries end with those that are there."""
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    @property
    def bad_rows(self) -> int:
        """Rows that were none of the table, and left out."""
    @property
    def waiting_bytes(self) -> int:
        """Bytes of the rows that wait for queries."""
    def __enter__(self) -> Source: ...
    def __exit__(self, *_exception: object) -> None: ...
