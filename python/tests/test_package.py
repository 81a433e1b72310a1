"""What the wheel says of itself to pip."""

from importlib.metadata import metadata, requires, version

import pytest
from packaging.requirements import Requirement

import millstream as ms


def test_it_needs_no_other_package() -> None:
    needed = [Requirement(text) for text in requires("millstream") or []]
    assert [str(of) for of in needed if of.marker is None or of.marker.evaluate({"extra": ""})] == []


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("pyarrow", {"pyarrow"}),
        ("polars", {"polars"}),
        ("pandas", {"pandas", "pyarrow"}),
        ("jupyter", {"ipykernel"}),
    ],
)
def test_an_extra_names_what_the_package_uses(extra: str, packages: set[str]) -> None:
    assert extra in metadata("millstream").get_all("Provides-Extra", [])
    wanted = [Requirement(text) for text in requires("millstream") or []]
    wanted = [of for of in wanted if of.marker and of.marker.evaluate({"extra": extra})]
    assert {of.name for of in wanted} == packages
    if extra != "jupyter":  # Its tests are skipped where it cannot be had.
        for of in wanted:
            assert version(of.name) in of.specifier, "these tests run with a version of it"


def test_the_version_is_that_of_the_wheel() -> None:
    assert ms.__version__ == version("millstream")
