"""Aggregates of SQL that are written in Python.

The engine calls `Groups` once for each batch, with the rows of all groups.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence

from . import _fingerprint
from ._errors import UsageError
from ._functions import arguments_of, type_of

if TYPE_CHECKING:
    import pyarrow

    from . import Session

State = tuple[Any, ...]


class Groups:
    """The groups of a worker: a state of each, by number."""

    def __init__(
        self, aggregate: Any, state: Sequence[pyarrow.DataType], returns: pyarrow.DataType
    ) -> None:
        self._aggregate = aggregate
        self._types = state
        self._returns = returns
        self._states: list[State] = []
        # The size of values varies in such a state.
        self._varies = any(not _has_width(of) for of in state)
        self._bytes = 0

    def update(self, args: Sequence[object], groups: Sequence[object], total: int) -> int:
        """Adds rows to groups. Gives the bytes of all states, about."""
        import pyarrow

        self._grow(total)
        columns = [pyarrow.array(arg) for arg in args]
        for group, rows in _apart(columns, pyarrow.array(groups[0])):
            self._set(group, self._aggregate.update(self._states[group], *rows))
        return self._size()

    def merge(self, states: Sequence[object], groups: Sequence[object], total: int) -> int:
        """Adds the states of other groups."""
        import pyarrow

        self._grow(total)
        columns = [pyarrow.array(state).to_pylist() for state in states]
        for group, state in zip(pyarrow.array(groups[0]).to_pylist(), zip(*columns)):
            self._set(group, self._aggregate.merge(self._states[group], state))
        return self._size()

    def take_states(self) -> list[pyarrow.Array]:
        """The states of all groups, by column. None is left."""
        import pyarrow

        states, self._states, self._bytes = self._states, [], 0
        return [
            pyarrow.array([state[at] for state in states], type=of)
            for at, of in enumerate(self._types)
        ]

    def take_values(self) -> list[pyarrow.Array]:
        """The results of all groups. None is left."""
        import pyarrow

        states, self._states, self._bytes = self._states, [], 0
        values = [self._aggregate.value(state) for state in states]
        values = [value.as_py() if isinstance(value, pyarrow.Scalar) else value for value in values]
        return [pyarrow.array(values, type=self._returns)]

    def _grow(self, total: int) -> None:
        while len(self._states) < total:
            self._states.append(self._checked(self._aggregate.start()))

    def _set(self, group: int, state: object) -> None:
        made = self._checked(state)
        if self._varies:
            self._bytes += _bytes_of(made) - _bytes_of(self._states[group])
        self._states[group] = made

    def _checked(self, state: object) -> State:
        import pyarrow

        if not isinstance(state, tuple):
            state = (state,)
        if len(state) != len(self._types):
            raise TypeError(f"a state has {len(self._types)} values, and not {len(state)}")
        return tuple(of.as_py() if isinstance(of, pyarrow.Scalar) else of for of in state)

    def _size(self) -> int:
        fixed = 64 + 40 * len(self._types)
        return max(0, len(self._states) * fixed + self._bytes)


def _has_width(of: pyarrow.DataType) -> bool:
    try:
        return bool(of.bit_width > 0)
    except ValueError:
        return False


def _bytes_of(state: State) -> int:
    return sum(sys.getsizeof(value) for value in state)


def _apart(columns: Sequence[Any], groups: Any) -> list[tuple[int, list[Any]]]:
    """The rows of each group, in their order."""
    import pyarrow.compute as pc

    if len(groups) == 0:
        return []
    order = pc.sort_indices(groups)
    groups = groups.take(order)
    columns = [column.take(order) for column in columns]
    counts = pc.value_counts(groups)
    made, begin = [], 0
    for group, count in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist()):
        made.append((group, [column.slice(begin, count) for column in columns]))
        begin += count
    return made


_METHODS = ("start", "update", "merge", "value")


def aggregate(
    session: Session,
    name: Optional[str],
    returns: object,
    args: Optional[Sequence[object]],
    state: Mapping[str, object],
    add: Callable[[str, object, int, Callable[[], Groups], int], None],
) -> Callable[[type], type]:
    """The decorator."""

    def decorate(of: type) -> type:
        import pyarrow

        missing = [method for method in _METHODS if not callable(getattr(of, method, None))]
        if missing:
            raise UsageError(
                f"{of.__name__} has no method '{missing[0]}'",
                "an aggregate has start(), update(state, …), merge(state, other), value(state)",
            )
        made = type_of(session, returns)
        if args is None:
            # Behind `self` and the state.
            types = arguments_of(of.update, session, skip=2)  # type: ignore[attr-defined]
        else:
            types = [type_of(session, given) for given in args]
        states = [type_of(session, given) for given in state.values()]
        all_types = [*types, *states, made]
        schema = pyarrow.schema([(str(at), given) for at, given in enumerate(all_types)])
        add(
            name or of.__name__,
            schema,
            len(types),
            lambda: Groups(of(), states, made),
            _fingerprint.of(of),
        )
        return of

    return decorate
