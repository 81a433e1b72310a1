"""Exceptions of Millstream."""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence


class Diagnostic(NamedTuple):
    """An error in a text of SQL. Lines and columns count from 1."""

    message: str
    line: int
    column: int
    length: int
    detail: Optional[str] = None
    hint: Optional[str] = None


class Error(Exception):
    """The base of all exceptions of Millstream."""

    hint: Optional[str] = None


class SqlError(Error):
    """The SQL cannot be planned. Its text shows each error at its place."""

    def __init__(self, message: str, diagnostics: Sequence[Diagnostic] = ()) -> None:
        super().__init__(message)
        self.diagnostics: list[Diagnostic] = list(diagnostics)
        self.hint: Optional[str] = self.diagnostics[0].hint if self.diagnostics else None


class _EngineError(Error):
    """An error that has an optional hint, details and the statement that it belongs to."""

    def __init__(
        self,
        message: str,
        hint: Optional[str] = None,
        details: Sequence[str] = (),
        statement: Optional[str] = None,
        line: Optional[int] = None,
    ) -> None:
        super().__init__(message)
        self.message: str = message
        self.hint: Optional[str] = hint
        self.details: list[str] = list(details)
        self.statement: Optional[str] = statement
        self.line: Optional[int] = line


class UsageError(_EngineError, ValueError):
    """A call that cannot be done as asked."""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class RunError(_EngineError):
    """A query failed while it ran."""

    def __str__(self) -> str:
        hint = [f"hint: {self.hint}"] if self.hint else []
        return "\n".join([self.message, *self.details, *hint])


class Bug(RunError):
    """Millstream panicked: the fault is ours. The session goes on."""


class Aborted(RunError):
    """A job or a query was dropped, by `abort()` or with its session. The session goes on."""


class Interrupted(Error, KeyboardInterrupt):
    """Ctrl-C has ended a query. The session goes on."""

    def __init__(self, message: str = "interrupted") -> None:
        super().__init__(message)
