"""Functions of SQL that are written in Python, over arrays of pyarrow."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from . import _fingerprint
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
    add: Callable[[str, object, str, Callable[..., Any], int], None],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorator."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        made = type_of(session, returns)
        if args is None:
            types = arguments_of(function, session)
        else:
            types = [type_of(session, given) for given in args]
        called = name or function.__name__
        fingerprint = _fingerprint.of(function)
        add(called, schema_of(types, made), volatility, calls(function, made), fingerprint)
        return function

    return decorate
