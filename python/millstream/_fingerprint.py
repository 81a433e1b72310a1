"""A number for what a function does: its code, its constants, and the values that it holds.

A job that goes on from a checkpoint needs the functions with which it has begun.
"""

from __future__ import annotations

import functools
import types
from typing import Iterator


def of(function: object) -> int:
    """The same number in every process with this function and this version of Python."""
    import hashlib

    digest = hashlib.sha256()
    for part in _parts(function, 0):
        digest.update(len(part).to_bytes(8, "little") + part)
    # 0 stands for a function that nobody knows.
    return int.from_bytes(digest.digest()[:8], "little") or 1


# Functions within functions are followed so deep.
_DEPTH_MAX = 8


def _parts(value: object, depth: int) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if depth > _DEPTH_MAX:
        return
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        yield repr(value).encode()
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _parts(item, depth + 1)
    elif isinstance(value, (frozenset, set)):
        yield from sorted(b"".join(_parts(item, depth + 1)) for item in value)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _parts(key, depth + 1)
            yield from _parts(item, depth + 1)
    elif isinstance(value, types.CodeType):
        yield value.co_code
        yield from _parts((value.co_names, value.co_varnames, value.co_freevars), depth + 1)
        yield from _parts(value.co_consts, depth + 1)
    elif isinstance(value, types.FunctionType):
        yield from _parts(value.__code__, depth + 1)
        yield from _parts((value.__defaults__, value.__kwdefaults__), depth + 1)
        for cell in value.__closure__ or ():
            try:
                yield from _parts(cell.cell_contents, depth + 1)
            except ValueError:
                yield b"empty"
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        yield from _parts(value.__func__, depth + 1)
    elif isinstance(value, property):
        yield from _parts((value.fget, value.fset, value.fdel), depth + 1)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), depth + 1)
    elif isinstance(value, type):
        yield value.__qualname__.encode()
        for base in value.__mro__[:-1]:
            for name, item in sorted(vars(base).items()):
                if callable(item) or not name.startswith("__"):
                    yield name.encode()
                    yield from _parts(item, depth + 1)
    elif isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}".encode()
    elif hasattr(value, "__wrapped__"):
        # A function behind a decorator of C, as `functools.lru_cache`.
        yield from _parts(value.__wrapped__, depth + 1)
    elif hasattr(type(value), "__call__"):
        yield from _parts(type(value), depth + 1)
