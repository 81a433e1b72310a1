"""Charts of Altair, whose specifications it checks itself when they are made."""

import datetime
from typing import Any

import pyarrow as pa
import pytest
from conftest import needed

import millstream as ms

needed("altair")

DAYS = [datetime.date(2024, 1, day) for day in (1, 2, 3)]
DATA = {
    "n": [3, 1, 2],
    "day": DAYS,
    "at": [datetime.datetime(2024, 1, 1, hour) for hour in (1, 2, 3)],
    "name": ["p", "q", None],
    "yes": [True, False, None],
    "a": [30.0, None, float("nan")],
    "b [m/s].x": pa.array([1, 2, 3], pa.decimal128(9, 2)),
}


def chart(session: ms.Session, x: str, *y: str, kind: str = "line") -> dict[str, Any]:
    session.register("t", pa.table(DATA))
    made: dict[str, Any] = session.sql("SELECT * FROM t").plot(x, *y, kind=kind).altair().to_dict()
    if "datasets" in made:
        made["data"] = {"values": made["datasets"][made["data"]["name"]]}
    return made


@pytest.mark.parametrize(
    ("x", "kind", "of", "values"),
    [
        ("n", "line", "quantitative", [3, 1, 2]),
        ("n", "bar", "ordinal", [3, 1, 2]),
        ("day", "line", "temporal", ["2024-01-01", "2024-01-02", "2024-01-03"]),
        ("at", "bar", "temporal", [f"2024-01-01T0{hour}:00:00" for hour in (1, 2, 3)]),
        ("name", "line", "ordinal", ["p", "q", None]),
        ("yes", "line", "ordinal", [True, False, None]),
        ("a", "line", "quantitative", [30.0, None, None]),
    ],
)
def test_values_and_types(session: ms.Session, x: str, kind: str, of: str, values: list[object]) -> None:
    made = chart(session, x, "b [m/s].x", kind=kind)
    assert made["mark"]["type"] == kind
    assert made["encoding"]["x"] == {"field": "x", "type": of, "title": x}
    assert made["encoding"]["y"] == {"field": "y", "type": "quantitative", "title": "b [m/s].x"}
    assert "color" not in made["encoding"]
    rows = [{"x": x, "y": y, "series": "b [m/s].x"} for x, y in zip(values, [1.0, 2.0, 3.0])]
    assert made["data"]["values"] == rows


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_several_columns_are_series(session: ms.Session, kind: str) -> None:
    made = chart(session, "day", "n", "a", kind=kind)
    assert made["encoding"]["color"]["field"] == "series"
    assert ("xOffset" in made["encoding"]) == (kind == "bar")
    assert [row["y"] for row in made["data"]["values"]] == [3.0, 1.0, 2.0, 30.0, None, None]
    assert [row["series"] for row in made["data"]["values"]] == ["n"] * 3 + ["a"] * 3


def test_a_relation_goes_through_the_stream_of_arrow(session: ms.Session) -> None:
    """As the table of a library that Altair knows."""
    import altair

    session.register("t", pa.table({"n": [1, 2]}))
    given = pa.table(session.sql("SELECT n FROM t ORDER BY n"))
    made = altair.Chart(given).mark_point().encode(x="n").to_dict()
    assert made["encoding"]["x"]["type"] == "quantitative"
    assert list(made["datasets"].values()) == [[{"n": 1}, {"n": 2}]]


def test_no_rows(session: ms.Session) -> None:
    session.register("t", pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}))
    made = session.sql("SELECT * FROM t").plot("x", "y").altair().to_dict()
    assert made["encoding"]["x"]["title"] == "x"
