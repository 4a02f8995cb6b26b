"""The table of what a stop waits for agrees with the managers."""

import inspect

import pytest

from retryflow.service import classification
from retryflow.service.classification import Treatment
from retryflow.service.order_manager import OrderManager
from retryflow.tracking import is_untracked


def exposed() -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(OrderManager) if getattr(member, "exposed", False)}


def test_every_rpc_method_is_classified_and_nothing_else_is() -> None:
    assert {row.name for row in classification.RPC_METHODS} == set(exposed())


def test_every_periodic_task_is_classified_and_nothing_else_is() -> None:
    assert {row.name for row in classification.PERIODIC_TASKS} == {name for name, _ in OrderManager._periodic_tasks}


@pytest.mark.parametrize("row", classification.RPC_METHODS, ids=lambda row: row.name)
def test_a_method_is_marked_as_the_table_says(row: classification.Classified) -> None:
    assert is_untracked(exposed()[row.name]) == (row.treatment is Treatment.UNTRACKED)


@pytest.mark.parametrize("row", classification.RPC_METHODS, ids=lambda row: row.name)
def test_a_method_returns_a_future_where_the_table_says_so(row: classification.Classified) -> None:
    returns = inspect.signature(exposed()[row.name]).return_annotation  # type: ignore[arg-type]
    assert ("Future" in returns) == (row.treatment is Treatment.ASYNC)


def test_no_async_job_is_missing_in_the_table() -> None:
    source = inspect.getsource(inspect.getmodule(OrderManager))
    assert ("submit_tracked(" in source) == bool(classification.ASYNC_JOBS)


def test_each_row_gives_a_reason() -> None:
    rows = (*classification.RPC_METHODS, *classification.ASYNC_JOBS, *classification.PERIODIC_TASKS)
    for row in (*rows, *classification.BACKGROUND):
        assert len(row.reason.split()) > 5
