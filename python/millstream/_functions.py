"""Functions of SQL that are written in Python, over arrays of pyarrow."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from . import _fingerprint, _millstream
from ._errors import UsageError

if TYPE_CHECKING:
    import pyarrow

    from . import Session

_PLAIN = {int: "int64", float: "float64", str: "string", bool: "bool_", bytes: "binary"}


def type_of(session: Session, given: object) -> pyarrow.DataType:
    """A type of pyarrow, of SQL ("timestamp(3)") or of Python (int)."""
    import pyarrow

    if isinstance(given, pyarrow.DataType):
        return given
    if isinstance(given, str):
        columns = pyarrow.schema(session.sql(f"SELECT CAST(NULL AS {given}) AS x"))
        return columns.field("x").type
    if isinstance(given, type) and given in _PLAIN:
        return getattr(pyarrow, _PLAIN[given])()
    if isinstance(given, type) and issubclass(given, pyarrow.Array):
        name = given.__name__.removesuffix("Array").lower()
        plain = {"boolean": "bool_", "double": "float64", "float": "float32"}
        made = getattr(pyarrow, plain.get(name, name), None)
        if made is not None:
            try:
                return made()
            except TypeError:
                pass  # The type has parameters, which a class does not tell.
    raise UsageError(f"{given!r} names no type", "pyarrow.int64(), 'timestamp(3)', int")


def arguments_of(
    function: Callable[..., Any], session: Session, skip: int = 0
) -> list[pyarrow.DataType]:
    """The types of the arguments behind the first ones, from annotations."""
    import inspect

    hints = typing.get_type_hints(function)
    types = []
    for name, parameter in list(inspect.signature(function).parameters.items())[skip:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(
                f"argument '{name}' stands for any number", "give the types: args=[pyarrow.int64()]"
            )
        if name not in hints:
            raise UsageError(
                f"argument '{name}' has no type",
                "annotate it (x: pyarrow.Int64Array), or give the types: args=[pyarrow.int64()]",
            )
        types.append(type_of(session, hints[name]))
    return types


def calls(
    function: Callable[..., Any], returns: pyarrow.DataType
) -> Callable[[Sequence[object]], pyarrow.Array]:
    """The function as the engine calls it: arrays in a list, an array out."""
    import pyarrow

    def call(args: Sequence[object]) -> pyarrow.Array:
        made = function(*[pyarrow.array(arg) for arg in args])
        if isinstance(made, pyarrow.ChunkedArray):
            made = made.combine_chunks()
        if not isinstance(made, pyarrow.Array):
            if isinstance(made, pyarrow.Scalar) or not hasattr(made, "__len__"):
                raise TypeError(
                    f"an array was expected, and not one value of {type(made).__name__}"
                )
            made = pyarrow.array(made, type=returns)
        return made if made.type == returns else made.cast(returns)

    return call


class NullOnError:
    """A function whose rows that fail give NULL, found by halves of a batch, and may be kept.

    It is called again for the same rows: up to twice as often as there are rows, where all fail.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[Sequence[object]], pyarrow.Array],
        returns: pyarrow.DataType,
        keep: Optional[Callable[[str, Sequence[object]], None]] = None,
    ) -> None:
        self._name = name
        self._call = call
        self._returns = returns
        self._keep = keep
        # Rows that gave NULL so. The interpreter's lock is held wherever it is changed.
        self.failed_rows = 0

    def __call__(self, args: Sequence[object]) -> pyarrow.Array:
        import pyarrow

        arrays = [pyarrow.array(arg) for arg in args]
        if not arrays:
            return self._call(arrays)
        parts: list[pyarrow.Array] = []
        # Slices are taken from the end: rows stay in their order.
        waiting = [(0, len(arrays[0]))]
        while waiting:
            start, rows = waiting.pop()
            try:
                made = self._call([array.slice(start, rows) for array in arrays])
            except Exception as error:
                if rows > 1:
                    half = rows // 2
                    waiting += [(start + half, rows - half), (start, half)]
                    continue
                self.failed_rows += rows
                _millstream.count_failed_rows(self._name, rows)
                if self._keep is not None and rows == 1:
                    reason = f"{type(error).__name__}: {error}"
                    self._keep(reason, [array.slice(start, 1) for array in arrays])
                made = pyarrow.nulls(rows, self._returns)
            if len(made) != rows:
                # Parts of wrong lengths could be as long as all together.
                raise ValueError(f"the function gave {len(made)} values for {rows} rows")
            parts.append(made)
        return parts[0] if len(parts) == 1 else pyarrow.concat_arrays(parts)


def schema_of(
    arguments: Sequence[pyarrow.DataType], returns: pyarrow.DataType
) -> pyarrow.Schema:
    """The types for the engine: the result comes last."""
    import pyarrow

    return pyarrow.schema([(str(at), of) for at, of in enumerate([*arguments, returns])])


def function(
    session: Session,
    name: Optional[str],
    returns: object,
    args: Optional[Sequence[object]],
    volatility: str,
    on_error: str,
    add: Callable[[str, object, str, Callable[..., Any], int], None],
    keep: Callable[[str], Callable[[str, Sequence[object]], None]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorator. `keep` makes the table of the rows that fail."""
    if callable(returns) and not isinstance(returns, type):
        raise UsageError("a function needs the type of its result", "@s.function(pyarrow.float64())")
    if on_error not in ("raise", "null", "bad"):
        raise UsageError(f"on_error cannot be {on_error!r}", "'raise', 'null' or 'bad'")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        made = type_of(session, returns)
        if args is None:
            types = arguments_of(function, session)
        else:
            types = [type_of(session, given) for given in args]
        called = name or function.__name__
        call: Callable[[Sequence[object]], pyarrow.Array] = calls(function, made)
        if on_error != "raise":
            call = NullOnError(called, call, made, keep(called) if on_error == "bad" else None)
            fingerprint = _fingerprint.of((function, on_error))
        else:
            fingerprint = _fingerprint.of(function)
        add(called, schema_of(types, made), volatility, call, fingerprint)
        return function

    return decorate
