"""Statements sent in one round trip: the same answers and the same errors as one by one."""

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.model import batches, leases, several
from retryflow.model.several import Answer, Several, among
from retryflow.model.tables import order_events, order_plugin_metadata, orders
from retryflow.model.transaction import is_disconnect, is_lost_race, is_trouble, transact
from tests.fixtures.contract import Desk

ODD = [
    "it's",
    'a "quote"',
    "100 % %s %(x)s",
    "semi;colon",
    "back\\slash",
    "uml\u00e4ut \U0001f512",
    "",
    "{a,b}",
    "NULL",
]


def run(desk: Desk, *calls: tuple[Any, dict[str, Any]]) -> list[Answer]:
    def work(connection: sa.Connection) -> list[Answer]:
        statements = Several(connection)
        for statement, parameters in calls:
            statements.add(statement, parameters)
        return statements.run()

    return transact(desk.engine, work, attempts=1)


@pytest.fixture(params=["together", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, desk: Desk) -> str:
    if request.param == "one by one":
        monkeypatch.setattr(several, "can_send_together", lambda connection: False)
    elif desk.engine.dialect.driver != "psycopg":
        pytest.skip("this driver sends them one by one")
    return str(request.param)


def line(order_id: str, detail: str | None) -> dict[str, object]:
    values: dict[str, object] = {"order_id": order_id, "event": "polling", "task": "t", "task_id": "i", "holder": "h"}
    return values | {"seconds": 0.25, "detail": detail}


def test_texts_of_any_kind_arrive_unchanged(desk: Desk, way: str) -> None:
    order_ids = sorted(desk.submit() for _ in ODD)

    def work(connection: sa.Connection) -> None:
        statements = Several(connection)
        batches.add_events(statements, [line(*pair) for pair in zip(order_ids, [*ODD[1:], None], strict=True)])
        batches.save_states(statements, {order_id: {text: text} for order_id, text in zip(order_ids, ODD, strict=True)})
        meta = [{"text": text, "list": [1, None, True]} for text in ODD]
        values = {order_id: {"meta": value} for order_id, value in zip(order_ids, meta, strict=True)}
        batches.update_pending(statements, values)
        answers = statements.run()
        assert [answer.rowcount for answer in answers][-1:] == [len(ODD)]

    transact(desk.engine, work)
    with desk.engine.connect() as connection:
        lines = order_events.c.order_id.in_(order_ids) & (order_events.c.event == "polling")
        details = connection.execute(sa.select(order_events.c.detail).where(lines)).scalars()
        assert sorted(map(str, details)) == sorted(map(str, [*ODD[1:], None]))
        state = order_plugin_metadata.c
        kept = connection.execute(sa.select(state.key, state.value).where(state.order_id.in_(order_ids)))
        assert sorted(map(tuple, kept)) == sorted((text, text) for text in ODD)
        found = connection.execute(sa.select(orders.c.meta).where(orders.c.id.in_(order_ids))).scalars()
        assert sorted(meta["text"] for meta in found) == sorted(ODD)


def test_a_line_that_is_too_long_is_an_error_and_not_cut(desk: Desk, way: str) -> None:
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("SQLite does not look at the length of a text")
    order_id = desk.submit()
    values = line(order_id, "x") | {"event": "e" * 37}
    with pytest.raises(Exception, match=r"(?i)too long"):
        transact(
            desk.engine,
            lambda connection: _add(connection, [values]),
            attempts=1,
        )


def _add(connection: sa.Connection, lines: Sequence[dict[str, object]]) -> None:
    statements = Several(connection)
    batches.add_events(statements, lines)
    statements.run()


def test_rows_come_with_the_same_types_as_one_by_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [desk.lease(desk.submit()).id for _ in range(3)]
    desk.write(sa.text("UPDATE order_task_leases SET retry_since = created_at, last_error = 'x'"))

    def read(connection: sa.Connection) -> dict[str, leases.Claimable]:
        statements = Several(connection)
        found = leases.read_many_with_order(statements, ids)
        return found(statements.run())

    together = transact(desk.engine, read)
    monkeypatch.setattr(several, "can_send_together", lambda connection: False)
    alone = transact(desk.engine, read)
    assert sorted(together) == sorted(ids)
    for task_id in ids:
        for name in ("task_id", "state", "meta", "order_type", "order_status", "plugin_state", "project_id"):
            assert getattr(together[task_id], name) == getattr(alone[task_id], name)
        assert together[task_id].state.retry_since is not None
        assert together[task_id].retrying_seconds == pytest.approx(alone[task_id].retrying_seconds, abs=30)


def test_counts_are_those_of_each_statement(desk: Desk, way: str) -> None:
    order_ids = sorted(desk.submit() for _ in range(3))
    dialect = desk.engine.dialect
    rename = orders.update().where(among(orders.c.id, dialect)).values(sub_status=sa.bindparam("word"))
    count = sa.select(sa.func.count().label("many")).where(among(orders.c.id, dialect))
    answers = run(
        desk,
        (rename, {"ids": order_ids[:2], "word": "a"}),
        (count, {"ids": order_ids}),
        (rename, {"ids": [], "word": "b"}),
        (rename, {"ids": ["nobody's"], "word": "b"}),
    )
    assert [answer.rowcount for answer in answers[:1] + answers[2:]] == [2, 0, 0]
    assert [row.many for row in answers[1].rows] == [3]


def test_one_that_fails_undoes_them_all(desk: Desk, way: str) -> None:
    order_id = desk.submit()
    dialect = desk.engine.dialect
    change = orders.update().where(among(orders.c.id, dialect)).values(sub_status="changed")
    broken = orders.insert().values(id=order_id, type="t", status="PENDING", created_at=sa.func.now())
    with pytest.raises(Exception, match=r"."):
        run(desk, (change, {"ids": [order_id]}), (broken, {}))
    assert desk.order(order_id).sub_status != "changed"


def test_a_lock_that_is_waited_for_too_long_is_a_lost_race(desk: Desk, way: str) -> None:
    if desk.engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one lock for all")
    order_id = desk.submit()
    change = orders.update().where(among(orders.c.id, desk.engine.dialect)).values(sub_status="changed")
    with desk.engine.connect() as rival, rival.begin():
        rival.execute(change, {"ids": [order_id]})
        with pytest.raises(Exception, match=r".") as caught:
            run(desk, (change, {"ids": [order_id]}))
    assert is_lost_race(caught.value)
    run(desk, (change, {"ids": [order_id]}))


def test_a_connection_that_is_killed_counts_as_one_and_is_not_used_again(desk: Desk, way: str) -> None:
    if desk.engine.dialect.name != "postgresql":
        pytest.skip("the same as with any other statement")
    change = orders.update().where(among(orders.c.id, desk.engine.dialect)).values(sub_status="changed")

    def work(connection: sa.Connection) -> None:
        number = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with desk.engine.connect() as killer:
            killer.exec_driver_sql(f"SELECT pg_terminate_backend({number}, 5000)")
        statements = Several(connection)
        statements.add(change, {"ids": ["x"]})
        statements.run()

    with pytest.raises(Exception, match=r".") as caught:
        transact(desk.engine, work, attempts=1)
    assert is_disconnect(caught.value)
    assert is_trouble(caught.value)
    run(desk, (change, {"ids": ["x"]}))


def test_no_parameter_is_shown_in_an_error(desk: Desk, way: str) -> None:
    broken = sa.select(sa.func.no_such_function(sa.bindparam("secret", type_=sa.String)).label("word"))
    with pytest.raises(Exception, match="no_such_function") as caught:
        run(desk, (broken, {"secret": "geheim"}))
    assert "geheim" not in str(caught.value)
