"""The request id under which the log speaks of an order: the same at every start, and every command shows it."""

import json
from typing import Any

import sqlalchemy as sa

from tests.fixtures.busy import Busy
from tests.fixtures.command import Command

GIVEN = "req-6f1c2a52"


def show(retryflow: Command, url: str) -> Any:
    return retryflow("order", "show", "mine", "-f", "json", database=url).json


def stored(url: str) -> str | None:
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT request_id FROM order_task_leases")).scalar_one()
    engine.dispose()
    return found


def test_without_one_it_is_made_of_the_order_s_id_from_submit_through_order_retry(
    retryflow: Command, empty: str
) -> None:
    """Also where an order is started over again, nothing but its id is known; a made up one would be lost there."""
    created = retryflow("order", "create", "--type", "t", "--id", "mine", "-f", "json", database=empty).json
    assert (created["request_id"], stored(empty)) == ("req-mine", None)
    assert retryflow("order", "cancel", "mine", database=empty).status == 0
    assert show(retryflow, empty)["request_id"] == "req-mine"
    assert retryflow("order", "retry", "mine", database=empty).status == 0
    shown = show(retryflow, empty)
    assert (shown["request_id"], shown["next_step"][0]["request_id"]) == ("req-mine", "req-mine")
    assert [line["detail"] for line in shown["history"] if line["event"] == "submitted"] == [None]


def test_one_that_was_given_is_shown_wherever_the_order_stands_and_for_ever_in_its_history(
    retryflow: Command, empty: str
) -> None:
    create = ["order", "create", "--type", "t", "--id", "mine", "--request-id", GIVEN]
    assert retryflow(*create, "-f", "json", database=empty).json["request_id"] == GIVEN
    shown = show(retryflow, empty)
    assert (shown["request_id"], shown["next_step"][0]["request_id"]) == (GIVEN, GIVEN)
    [lease] = retryflow("lease", "list", "-f", "json", database=empty).json
    assert lease["request_id"] == GIVEN
    assert GIVEN in retryflow("lease", "list", database=empty).out
    waited = retryflow(*create, "--wait", "--timeout", "0", "-f", "json", database=empty)
    assert json.loads(waited.out)["request_id"] == GIVEN
    assert f"submitted, process_type_order: request {GIVEN}" in waited.err
    assert retryflow("order", "cancel", "mine", database=empty).status == 0
    assert retryflow("order", "retry", "mine", database=empty).status == 0
    [lease] = retryflow("lease", "list", "-f", "json", database=empty).json
    assert lease["request_id"] == GIVEN
    assert retryflow("order", "cancel", "mine", database=empty).status == 0
    shown = show(retryflow, empty)
    assert (shown["request_id"], shown["history"][0]["detail"]) == (GIVEN, f"request {GIVEN}")


def test_the_retry_list_shows_it(retryflow: Command, busy: Busy) -> None:
    [row] = retryflow("retry", "list", "-f", "json", database=busy.url).json
    assert row["request_id"] == "req-1"
    assert "req-1" in retryflow("retry", "list", database=busy.url).out
