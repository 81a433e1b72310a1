"""Notebooks: displays, `%%sql`, the plot, and the two notebooks of the documentation."""

import html
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from conftest import needed

import millstream as ms
from millstream import _display, _magic

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


def test_a_query_that_ends_shows_its_first_rows(session: ms.Session) -> None:
    session.register("t", pa.table({"n": list(range(50)), "s": ["<b>"] * 50}))
    shown = session.sql("SELECT n, s FROM t ORDER BY n")._repr_html_()
    tree = ElementTree.fromstring(f"<div>{shown.replace('<br>', '')}</div>")
    rows = [[cell.text for cell in row] for row in tree.findall(".//tbody/tr")]
    assert rows == [[str(n), "<b>"] for n in range(20)]
    assert "first 20" in shown
    assert [head.text for head in tree.findall(".//th")] == ["n", "s"]
    assert [of.text for of in tree.findall(".//th/small")] == ["Int64", "Utf8"]
    shown = session.sql("SELECT n FROM t WHERE n < 1")._repr_html_()
    assert "1 row<" in shown
    assert "<i>NULL</i>" in session.sql("SELECT CAST(NULL AS BIGINT) AS x")._repr_html_()


def test_late_and_bad_rows_stand_below(session: ms.Session, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = ["2024-01-01 00:10:00,1", "2024-01-01 00:00:00,2", "x,3", "2024-01-01 00:20:00,x"]
    path.write_text("ts,n\n" + "\n".join(lines) + "\n")
    session.sql(
        "CREATE TABLE t (ts TIMESTAMP(3), n BIGINT, WATERMARK FOR ts AS ts)"
        f" WITH ('connector' = 'file', 'path' = '{path}', 'on_bad' = 'skip')"
    )
    windows = session.sql(
        "SELECT window_start, count(*) AS n FROM TUMBLE(TABLE t, DESCRIPTOR(ts),"
        " INTERVAL '1' MINUTE) GROUP BY window_start, window_end"
    )
    assert "<small>1 row; 1 late row; 2 bad rows</small>" in windows._repr_html_()
    assert "<small>2 rows; 2 bad rows</small>" in session.sql("SELECT n FROM t")._repr_html_()


def test_a_query_that_takes_long_shows_the_rows_so_far(
    session: ms.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_display, "SECONDS_MAX", 0.2)
    session.sql("CREATE TABLE long (n BIGINT) WITH ('connector' = 'generator', 'rows' = '1000000000000')")
    assert "it has not ended" in session.sql("SELECT n FROM long WHERE n < 0")._repr_html_()
    assert session.sql("SELECT 1").fetchall() == [(1,)]


def test_a_query_without_an_end_shows_its_plan(session: ms.Session) -> None:
    session.sql("CREATE TABLE ticks (n BIGINT) WITH ('connector' = 'generator', 'rate' = '1000')")
    relation = session.sql("SELECT n FROM ticks")
    shown = relation._repr_html_()
    assert html.escape(relation.explain()) in shown
    assert "it has no end" in shown
    session.sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")
    assert "run by .run()" in session.sql("INSERT INTO nowhere SELECT n FROM ticks")._repr_html_()


def test_a_job_shows_how_far_it_is(session: ms.Session) -> None:
    session.sql("CREATE TABLE numbers (n BIGINT) WITH ('connector' = 'generator', 'rows' = '1000')")
    session.sql("CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')")
    job = session.sql("INSERT INTO nowhere SELECT n FROM numbers").start()
    job.wait(60)
    assert "100%" in job._repr_html_() and "ended" in job._repr_html_()


def svg(plot: ms.Plot) -> ElementTree.Element:
    return ElementTree.fromstring(plot._repr_svg_())


def test_a_plot_has_its_lines_and_bars(session: ms.Session, tmp_path: Path) -> None:
    data = {"x": [3, 1, 2, 4], "a": [30.0, 10.0, None, 40.0], "b": [1, 2, 3, 4], "s": ["p", "q", "r", "s"]}
    session.register("t", pa.table(data))
    relation = session.sql("SELECT x, a, b, s FROM t")
    name = "{http://www.w3.org/2000/svg}"
    plot = relation.plot("x", "b")
    [line] = svg(plot).findall(f"{name}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points), "in the order of x"
    # b is 2, 3, 1, 4 in that order; a picture counts from above.
    heights = [y for _, y in points]
    assert sorted(range(4), key=lambda at: -heights[at]) == [2, 0, 1, 3]
    lines = svg(relation.plot("x", "a"))
    assert len(lines.findall(f"{name}polyline")) + len(lines.findall(f"{name}circle")) == 2, "a gap"
    bars = svg(relation.plot("s", "a", "b", kind="bar")).findall(f"{name}rect")
    assert len(bars) == 7
    plot.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text() == plot._repr_svg_()
    for x, y, kind, message in (
        ("z", "a", "line", "no column 'z'"),
        ("x", "s", "line", "column 's' has no numbers"),
        ("x", "a", "pie", "no plot 'pie'"),
    ):
        with pytest.raises(ms.UsageError, match=message):
            relation.plot(x, y, kind=kind)._repr_svg_()
    many = session.sql("SELECT x, b FROM t WHERE x < 0").plot("x", "b")
    assert svg(many).findall(f"{name}polyline") == []


def test_cells_of_sql(session: ms.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"s": session}
    assert _magic.run(names, "rows <<", "SELECT 1 AS one") is None
    assert names["rows"].fetchall() == [(1,)]
    made = _magic.run(names, "SELECT 2", None)
    assert isinstance(made, ms.Relation) and made.fetchall() == [(2,)]
    assert _magic.run(names, "", "CREATE TABLE e (n BIGINT) WITH ('connector' = 'generator', 'rate' = '9')") is None
    report = _magic.run(names, "-s s", "INSERT INTO 'x.csv' SELECT 1 AS x")
    assert report is None or isinstance(report, dict)
    assert (tmp_path / "x.csv").read_text().split() == ["x", "1"]
    job = _magic.run(names, "job <<", "INSERT INTO 'y.csv' SELECT n FROM e")
    assert job is None and isinstance(names["job"], ms.Job)
    names["job"].abort()
    names["t"] = ms.Session(workers=1)
    with pytest.raises(ms.UsageError, match="there are 2 sessions"):
        _magic.run(names, "", "SELECT 1")
    names["t"].close()
    assert isinstance(_magic.run(names, "", "SELECT 1"), ms.Relation), "a closed one does not count"
    with pytest.raises(ms.UsageError, match="'u' is no session"):
        _magic.run(names, "-s u", "SELECT 1")
    with pytest.raises(ms.UsageError, match="does not know '--what'"):
        _magic.run(names, "--what", "SELECT 1")
    own: dict[str, Any] = {}
    assert isinstance(_magic.run(own, "", "SELECT 1"), ms.Relation)
    own["_millstream_session"].close()


def outputs(cell: Any) -> list[object]:
    made = []
    for output in cell.get("outputs", []):
        made.append(output.get("data") or output.get("text") or output.get("ename"))
    return made


@pytest.mark.parametrize("name", ["flights", "stream"])
def test_the_notebooks_of_the_documentation(name: str, tmp_path: Path) -> None:
    nbclient = needed("nbclient")
    needed("ipykernel")
    import nbformat

    stored = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    ran = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(ran, timeout=120, kernel_name="python3", resources=where).execute()
    compared = 0
    for before, after in zip(stored.cells, ran.cells):
        if before.cell_type != "code":
            continue
        assert len(outputs(before)) == len(outputs(after)), before.source
        if "varies" not in before.metadata.get("tags", []):
            assert outputs(before) == outputs(after), before.source
            compared += len(outputs(before))
    assert compared >= 4


LIVE = [
    "import millstream as ms\nfrom millstream import _display\n%load_ext millstream\ns = ms.Session(workers=1)",
    "%%sql\nCREATE TABLE ticks (n BIGINT) WITH ('connector' = 'generator', 'rate' = '1000');\n"
    "CREATE TABLE nowhere (n BIGINT) WITH ('connector' = 'blackhole')",
    "job = s.sql('INSERT INTO nowhere SELECT n FROM ticks').start()\njob",
    "import asyncio\nwhile not (job.progress and job.progress['rows_in']):\n    await asyncio.sleep(0.05)\n"
    "job.stop()\nawait job\nwhile _display._tasks:\n    await asyncio.sleep(0.05)",
    "s.close()",
]


def test_the_display_of_a_job_follows_it() -> None:
    needed("ipykernel")
    manager_of = needed("jupyter_client.manager")
    manager, client = manager_of.start_new_kernel(kernel_name="python3")
    heard: list[dict[str, Any]] = []
    try:
        for source in LIVE:
            sent = client.execute(source)
            # Updates belong to the cell that showed the job, while another one runs.
            while True:
                message = client.get_iopub_msg(timeout=120)
                heard.append(message)
                assert message["msg_type"] != "error", message["content"]
                is_idle = message["content"].get("execution_state") == "idle"
                if is_idle and message["parent_header"]["msg_id"] == sent:
                    break
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    shown = [of["content"] for of in heard if "display_data" in of["msg_type"]]
    assert len({of["transient"]["display_id"] for of in shown}) == 1, "one display"
    texts = [of["data"]["text/html"] for of in shown]
    assert "rows in 0," in texts[0] and "running" in texts[0]
    assert "stopped" in texts[-1] and "rows in 0," not in texts[-1], texts


def test_errors_of_cells_show_the_place_and_no_traceback(tmp_path: Path) -> None:
    nbclient = needed("nbclient")
    needed("ipykernel")
    from nbformat import v4

    notebook = v4.new_notebook(cells=[v4.new_code_cell(LIVE[0]), v4.new_code_cell("%%sql\nSELEC 1")])
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources=where, allow_errors=True
    )
    client.execute()
    said = str(notebook.cells[1].outputs)
    assert "<sql>:1:1" in said and "_magic.py" not in said


def test_an_interrupt_gives_the_notebook_back() -> None:
    needed("ipykernel")
    manager_of = needed("jupyter_client.manager")
    manager, client = manager_of.start_new_kernel(kernel_name="python3")
    try:
        setup = "import millstream as ms; s = ms.Session(workers=1)\n" + (
            "s.sql(\"CREATE TABLE long (n BIGINT) WITH ('connector' = 'generator', 'rows' = '1000000000000')\")\n"
        )
        client.execute_interactive(setup, timeout=120)
        # Else the kernel drops what is sent right behind a cell that fails.
        code = "print('ready', flush=True); s.sql('SELECT sum(n) FROM long').fetchall()"
        sent = client.execute(code, stop_on_error=False)
        while True:
            message = client.get_iopub_msg(timeout=120)
            if message["msg_type"] == "stream" and "ready" in message["content"]["text"]:
                break
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=60)
        assert reply["parent_header"]["msg_id"] == sent
        # The interrupt may have come before the query has begun.
        assert reply["content"]["ename"] in ("Interrupted", "KeyboardInterrupt")
        after = client.execute_interactive("assert s.sql('SELECT 1').fetchall() == [(1,)]", timeout=60)
        assert after["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
