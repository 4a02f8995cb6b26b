"""The plans once more, on the real servers."""

from collections.abc import Iterator

import pytest

from tests.fixtures.retry_list import SERVERS
from tests.unit import test_plans as plans
from tests.unit.test_plans import *  # noqa: F403


@pytest.fixture(scope="module", params=SERVERS)
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[plans.Grown]]:
    yield from plans.filled(request.param, tmp_path_factory.mktemp("plans"), settled=False)


@pytest.fixture(scope="module", params=SERVERS)
def settled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[plans.Grown]]:
    yield from plans.filled(request.param, tmp_path_factory.mktemp("plans"), settled=True)
