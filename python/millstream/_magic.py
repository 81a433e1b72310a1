"""`%sql` and `%%sql` of notebooks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Optional

from ._errors import Error, UsageError

if TYPE_CHECKING:
    from . import Relation, Session

# The session of a notebook that has made none.
_NAME = "_millstream_session"
_OPTIONS = re.compile(r"\s*(?:-s\s+(?P<session>\w+)\s*)?(?:(?P<result>\w+)\s*<<)?\s*$")


def load(shell: Any) -> None:
    """Adds the magics to a shell of IPython."""

    def sql(line: str, cell: Optional[str] = None) -> object:
        try:
            return run(shell.user_ns, line, cell)
        except Error as error:
            # Its text shows the place in the SQL; lines of this file say nothing.
            from IPython.core.error import UsageError as Shown

            raise Shown(str(error)) from None

    shell.register_magic_function(sql, "line_cell", "sql")


def run(names: dict[str, Any], line: str, cell: Optional[str]) -> object:
    """Runs `%sql TEXT`, or a cell below `%%sql -s SESSION NAME <<`."""
    options = _OPTIONS.match("" if cell is None else line)
    if options is None:
        raise UsageError(f"%%sql does not know '{line.strip()}'", "%%sql -s session rows <<")
    session = _session(names, options["session"])
    made = _ran(session.sql(line if cell is None else cell))
    if options["result"]:
        names[options["result"]] = made
        return None
    return made


def _ran(relation: Relation) -> object:
    """A query is shown; other statements run, in the background if they have no end."""
    if relation.columns:
        return relation
    if not relation.bounded:
        return relation.start()
    report = relation.run()
    return report if report["rows_in"] or report["rows_out"] else None


def _session(names: dict[str, Any], name: Optional[str]) -> Session:
    """The session of this name; else the only one that the notebook has, or a new one."""
    from . import Session

    if name is not None:
        found = names.get(name)
        if isinstance(found, Session):
            return found
        raise UsageError(f"'{name}' is no session", f"{name} = millstream.Session()")
    open_ = {
        id(value): value
        for key, value in names.items()
        if isinstance(value, Session) and not value.closed and (key == _NAME or key[0] != "_")
    }
    if len(open_) > 1:
        raise UsageError(f"there are {len(open_)} sessions", "name one: %%sql -s session")
    for session in open_.values():
        return session
    session = names[_NAME] = Session()
    return session
