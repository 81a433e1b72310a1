"""What notebooks show of relations and jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence

# What takes long to import is imported where it is used.
if TYPE_CHECKING:
    import asyncio

    from . import Batches, Relation
    from ._millstream import Job

# Rows that are shown of a query, and seconds for which it runs for them.
ROWS_MAX = 20
SECONDS_MAX = 2.0
# Characters of a value that are shown.
_TEXT_MAX = 120
# Seconds between two looks at a job.
_REFRESH = 0.25
_FIRST = 0.05


def _text(value: object) -> str:
    import html

    if value is None:
        return "<i>NULL</i>"
    if isinstance(value, float):
        text = f"{value:g}" if abs(value) < 1e15 else repr(value)
    else:
        text = str(value)
    shown = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
    return html.escape(shown)


def table_html(
    names: Sequence[str],
    types: Optional[Sequence[str]],
    rows: Sequence[Sequence[object]],
    note: str = "",
) -> str:
    """A table, of which the first rows are shown."""
    import html

    heads = [html.escape(name) for name in names]
    if types is not None:
        heads = [f"{name}<br><small>{html.escape(of)}</small>" for name, of in zip(heads, types)]
    shown = rows[:ROWS_MAX]
    note = note or counted(rows)
    return "".join(
        [
            "<table><thead><tr>",
            *(f"<th>{head}</th>" for head in heads),
            "</tr></thead><tbody>",
            *(_row_html(row) for row in shown),
            f"</tbody></table><small>{html.escape(note)}</small>",
        ]
    )


def _row_html(row: Iterable[object]) -> str:
    right = ' style="text-align:right"'
    cells = (
        f"<td{right if isinstance(value, (int, float)) else ''}>{_text(value)}</td>"
        for value in row
    )
    return f"<tr>{''.join(cells)}</tr>"


def relation_html(relation: Relation) -> str:
    """The first rows of a query that ends; of all else the plan, and nothing runs."""
    import html

    if not relation.columns or not relation.bounded:
        plan = f"<pre>{html.escape(relation.explain())}</pre>"
        how = (
            "it has no end: read it by .batches(), or INSERT its rows and .start() that"
            if relation.columns
            else "it is run by .run(), or in the background by .start()"
        )
        return f"{plan}<small>{html.escape(how)}</small>"
    rows, note = first_rows(relation)
    return table_html(relation.columns, relation.types, rows, note)


def first_rows(relation: Relation) -> tuple[list[tuple[Any, ...]], str]:
    """The first rows that a query gives in time, and a note: of late and bad rows, and if these
    may not be all."""
    import time

    rows: list[tuple[Any, ...]] = []
    until = time.monotonic() + SECONDS_MAX
    with relation.batches() as batches:
        while len(rows) <= ROWS_MAX:
            try:
                batch = batches.next_within(max(0.0, until - time.monotonic()))
            except TimeoutError:
                note = f"{len(rows)} rows in {SECONDS_MAX:g} s: it has not ended"
                return rows, note + _lost(batches)
            if batch is None:
                return rows, counted(rows) + _lost(batches)
            rows.extend(batch.fetchall())
        return rows[:ROWS_MAX], f"the first {ROWS_MAX} rows" + _lost(batches)


def _lost(batches: Batches) -> str:
    """Late and bad rows so far, of which no result speaks."""
    progress = batches.progress or {}
    counts = ((progress.get("late_rows"), "late"), (progress.get("bad_rows"), "bad"))
    return "".join(f"; {count:,} {of} {_rows(count)}" for count, of in counts if count)


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def counted(rows: Sequence[object]) -> str:
    """How many rows there are, of which the first are shown."""
    more = f", of which the first {ROWS_MAX} are shown" if len(rows) > ROWS_MAX else ""
    return f"{len(rows):,} {_rows(len(rows))}{more}"


def job_html(job: Job) -> str:
    """A bar, rows and their rate, the watermark and its lag."""
    import datetime
    import html

    progress = job.progress or {}
    rows_in, elapsed = progress.get("rows_in", 0), progress.get("elapsed", 0.0)
    rate = rows_in / elapsed if elapsed else 0.0
    state = repr(job).removeprefix("<millstream.Job, ").removesuffix(">")
    facts = [
        ("", state),
        ("rows in", f"{rows_in:,}"),
        ("rows out", f"{progress.get('rows_out', 0):,}"),
        ("rows/s", f"{rate:,.0f}"),
    ]
    watermark = progress.get("watermark_ms")
    if watermark is not None:
        epoch = datetime.datetime(1970, 1, 1)
        try:
            shown = str(epoch + datetime.timedelta(milliseconds=watermark))
        except OverflowError:
            shown = f"{watermark} ms"
        facts.append(("watermark", shown))
    if progress.get("lag") is not None:
        facts.append(("lag", f"{progress['lag']:.1f} s"))
    if progress.get("late_rows"):
        facts.append(("late rows", f"{progress['late_rows']:,}"))
    if progress.get("bad_rows"):
        facts.append(("bad rows", f"{progress['bad_rows']:,}"))
    if progress.get("checkpoint") is not None:
        facts.append(("checkpoint", str(progress["checkpoint"])))
    done = 1.0 if state == "ended" else progress.get("done")
    bar = "" if done is None else f'<progress value="{done:.3f}" max="1"></progress> {done:.0%} '
    text = ", ".join(f"{name} {value}".strip() for name, value in facts)
    return f"{bar}<small>{html.escape(text)}</small>"


# The tasks that update displays: an event loop holds none of them.
_tasks: set[asyncio.Task[None]] = set()


def show_job(job: Job) -> None:
    """Shows a job, and again four times a second until it ends, from the kernel's own loop.

    Nothing is shown from another thread: what it would show appears in a cell by chance.
    """
    import asyncio

    from IPython.display import HTML, display

    handle = display(HTML(job_html(job)), display_id=True)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    if handle is not None and not job.done:
        task = loop.create_task(_follow(job, handle))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


async def _follow(job: Job, handle: Any) -> None:
    import asyncio

    from IPython.display import HTML

    sleep = _FIRST
    while not job.done:
        await asyncio.sleep(sleep)
        handle.update(HTML(job_html(job)))
        sleep = _REFRESH
