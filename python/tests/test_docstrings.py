"""Each public function has an example in its docstring, and the examples run."""

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import needed

import millstream as ms

# They are in Rust, and are shown where they are made: `Relation.start` and `Session.source`.
CLASSES_IN_RUST = {ms.Job, ms.Source}


def documented() -> Iterator[tuple[str, object]]:
    """The public functions, and the methods of public classes, of which a relation gives two."""
    for name in [*ms.__all__, "Batches"]:
        of = getattr(ms, name)
        if inspect.isfunction(of):
            yield name, of
        elif inspect.isclass(of) and not issubclass(of, (BaseException, ms.Diagnostic)):
            if of in CLASSES_IN_RUST:
                continue
            for method, function in vars(of).items():
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", function


DOCUMENTED = dict(documented())
# It is called by IPython.
del DOCUMENTED["load_ipython_extension"]


def test_the_functions_are_found() -> None:
    assert {"Session.sql", "Relation.batches", "Batches.close", "Plot.save", "on_ray"} < set(DOCUMENTED)
    assert len(DOCUMENTED) > 25


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_of_a_function_gives_what_it_says(
    name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "on_ray":
        request.getfixturevalue("ray_cluster")
    elif name == "Plot.altair":
        needed("altair")
    monkeypatch.chdir(tmp_path)
    with ms.Session(workers=1) as session:
        session.register("t", pa.table({"k": ["a", "b", "a"], "x": [1, 2, 3]}))
        names = {"s": session, "ms": ms, "pa": pa, "pc": pc}
        found = doctest.DocTestFinder(recurse=False).find(DOCUMENTED[name], name, globs=names)
        said: list[str] = []
        assert [test for test in found if test.examples], "it has no example"
        for test in found:
            doctest.DocTestRunner().run(test, out=said.append)
        assert said == [], "".join(said)


def test_the_example_of_a_session_runs() -> None:
    found = doctest.DocTestFinder(recurse=False).find(ms.Session, "Session", globs={"ms": ms})
    assert [doctest.DocTestRunner().run(test).failed for test in found if test.examples] == [0]
