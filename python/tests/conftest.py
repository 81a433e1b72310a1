from collections.abc import Iterator

import pytest

import millstream as ms


@pytest.fixture
def session() -> Iterator[ms.Session]:
    with ms.Session(workers=2) as made:
        yield made
