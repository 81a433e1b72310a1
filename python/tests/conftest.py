import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import NoReturn

import pytest

import millstream as ms


@pytest.fixture
def session() -> Iterator[ms.Session]:
    with ms.Session(workers=2) as made:
        yield made


def missing(what: str, reason: str) -> NoReturn:
    """Skips a test that needs what is not there.

    `scripts/test-python.sh` says in MILLSTREAM_MAY_MISS which things it could not get; others have to
    be there. Tests that are run by hand are skipped.
    """
    may_miss = os.environ.get("MILLSTREAM_MAY_MISS")
    if may_miss is None or what in may_miss.split():
        pytest.skip(reason, allow_module_level=True)
    pytest.fail(f"{reason}: {what} is needed here", pytrace=False)


def needed(package: str) -> ModuleType:
    """The package, which may be missing."""
    try:
        return importlib.import_module(package)
    except ImportError:
        missing(package.partition(".")[0], f"there is no package {package}")


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Ray on this machine, for all tests that need it."""
    ray = needed("ray")
    with pytest.MonkeyPatch.context() as patch:
        # It leaves a token in the home directory of its user.
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        # It gives its own processes little time to begin, which a busy machine may not have.
        for left in (2, 1, 0):
            try:
                ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
                break
            except RuntimeError:
                ray.shutdown()
                if left == 0:
                    raise
        yield ray
        ray.shutdown()
