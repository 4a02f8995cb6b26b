"""The contract of the dispatch once more, on the real servers."""

import pytest

from tests.fixtures.retry_list import SERVERS
from tests.unit.test_retry_dispatch import *  # noqa: F403

pytestmark = pytest.mark.parametrize("retry_list", SERVERS, indirect=True)
