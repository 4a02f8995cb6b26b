"""Migrations on each database: the same tables as the models, harmless to repeat, refused where they do not fit."""

import subprocess
import sys
import threading

import pytest
import sqlalchemy as sa

from retryflow.errors import SchemaError
from retryflow.model import schema
from retryflow.model.engine import create_engine
from retryflow.model.tables import metadata
from tests.fixtures.retry_list import together


@pytest.fixture
def engine(database_url: str):  # type: ignore[no-untyped-def]
    made = create_engine(database_url)
    yield made
    made.dispose()


def _tables(engine: sa.Engine) -> dict[str, object]:
    """Everything that reflection tells of our tables."""
    look = sa.inspect(engine)
    return {
        name: {
            "columns": [{**column, "type": str(column["type"]), "comment": None} for column in look.get_columns(name)],
            "key": look.get_pk_constraint(name),
            "indexes": sorted(look.get_indexes(name), key=lambda index: str(index["name"])),
            "unique": sorted(look.get_unique_constraints(name), key=lambda entry: str(entry["name"])),
            "foreign": look.get_foreign_keys(name),
            "options": look.get_table_options(name),
        }
        for name in sorted(metadata.tables)
    }


def test_a_fresh_upgrade_equals_the_models(engine: sa.Engine) -> None:
    schema.upgrade(engine)
    assert schema.differences(engine) == []
    migrated = _tables(engine)
    with engine.begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    assert migrated == _tables(engine), "reflection sees more than alembic's comparison does"


def test_upgrading_twice_is_harmless(engine: sa.Engine) -> None:
    assert schema.upgrade(engine) == schema.head()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO entity_locks (entity_to_lock, worker_host_name, created_at) "
            "VALUES ('x', 'y', '2026-01-01 00:00:00')"
        )
    assert schema.upgrade(engine) == schema.head()
    assert schema.differences(engine) == []
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM entity_locks").scalar() == 1


def test_upgrades_at_once_on_several_threads_are_harmless(engine: sa.Engine) -> None:
    several = [create_engine(engine.url.render_as_string(hide_password=False)) for _ in range(4)]
    heads = together(*(lambda one=one: schema.upgrade(one) for one in several))
    assert heads == [schema.head()] * 4
    assert schema.differences(engine) == []
    for one in several:
        one.dispose()


def test_upgrades_at_once_in_several_processes_are_harmless(engine: sa.Engine) -> None:
    code = (
        "import sys; from retryflow.model import schema; from retryflow.model.engine import create_engine; "
        "engine = create_engine(sys.argv[1]); sys.stdin.readline(); print(schema.upgrade(engine))"
    )
    command = [sys.executable, "-c", code, engine.url.render_as_string(hide_password=False)]
    several = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda one=one: answers.append(one.communicate("go\n", timeout=120)[0]))
        for one in several
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.splitlines()[-1] for answer in answers] == [schema.head()] * 2
    assert schema.differences(engine) == []


def test_an_upgrade_waits_for_one_that_is_under_way(engine: sa.Engine) -> None:
    """Two at once would both create the tables; MariaDB cannot even roll that back."""
    done = threading.Event()
    with engine.connect() as connection, schema._only_one(connection), connection.begin():
        thread = threading.Thread(target=lambda: (schema.upgrade(engine), done.set()))
        thread.start()
        assert not done.wait(1.0)
    assert done.wait(60)
    thread.join()
    schema.check(engine)


def test_a_failed_upgrade_leaves_no_lock_behind(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.command.upgrade", broken)
        with pytest.raises(RuntimeError):
            schema.upgrade(engine)
    assert schema.upgrade(engine) == schema.head()


def test_a_database_without_tables_is_refused_and_the_command_named(engine: sa.Engine) -> None:
    with pytest.raises(SchemaError, match=r"no retryflow tables; run: retryflow db upgrade"):
        schema.check(engine)
    assert schema.current(engine) is None
    assert sa.inspect(engine).get_table_names() == [], "looking creates nothing"


def test_a_schema_that_is_too_new_is_neither_used_nor_changed(engine: sa.Engine) -> None:
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    for refused in (schema.check, schema.upgrade):
        with pytest.raises(SchemaError, match=r"at 9999, which this version does not know"):
            refused(engine)
    assert schema.current(engine) == "9999"


def test_a_schema_that_has_lost_tables_is_refused_until_they_are_made_again(engine: sa.Engine) -> None:
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE entity_locks")
        connection.exec_driver_sql("DROP TABLE order_events")
    with pytest.raises(SchemaError, match=r"lost its tables entity_locks, order_events; .*: retryflow db upgrade"):
        schema.check(engine)
    schema.upgrade(engine)
    with pytest.raises(SchemaError, match=r"lost its tables"):
        schema.check(engine)
    assert schema.make_lost_tables(engine) == ["entity_locks", "order_events"]
    schema.check(engine)
    assert schema.differences(engine) == []
    assert schema.make_lost_tables(engine) == []


def test_a_schema_that_is_too_old_is_refused_and_the_command_named(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.upgrade(engine)
    monkeypatch.setattr(schema, "head", lambda: "0002")
    with pytest.raises(SchemaError, match=r"at 0001, this version needs 0002; run: retryflow db upgrade"):
        schema.check(engine)


def test_the_history_says_what_was_applied(engine: sa.Engine) -> None:
    assert [revision.applied for revision in schema.history(engine)] == [False]
    schema.upgrade(engine)
    [first] = schema.history(engine)
    assert (first.id, first.applied) == ("0001", True)
    assert first.message.startswith("The first tables")


def test_a_strangers_tables_in_the_same_database_are_left_alone(engine: sa.Engine) -> None:
    """A service keeps its own tables, and its own alembic versions, beside ours."""
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('theirs')")
    schema.upgrade(engine)
    assert schema.differences(engine) == []
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "theirs"


def test_the_files_of_the_migrations_are_named_after_their_revisions_in_a_row() -> None:
    """Daemons look for the newest one by its name, without importing alembic."""
    from alembic import script

    directory = script.ScriptDirectory.from_config(schema._config())
    revisions = [entry.revision for entry in directory.walk_revisions()]
    assert schema.head() == directory.get_current_head()
    assert sorted(schema._known(), reverse=True) == revisions


def _interrupt_after(engine: sa.Engine, statements: int) -> bool:
    """Upgrade, and end in the middle.

    :returns: whether there was so much to do.
    """
    done: list[str] = []

    def count(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.lstrip().startswith(("CREATE", "INSERT")):
            if len(done) == statements:
                raise KeyboardInterrupt
            done.append(statement)

    sa.event.listen(engine, "before_cursor_execute", count)
    try:
        schema.upgrade(engine)
    except KeyboardInterrupt:
        return True
    else:
        return False
    finally:
        sa.event.remove(engine, "before_cursor_execute", count)


def test_an_upgrade_that_was_interrupted_anywhere_can_be_run_again(engine: sa.Engine) -> None:
    """MariaDB undoes nothing, so the next run has to go on from there."""
    for _ in range(15):
        assert _interrupt_after(engine, statements=1)
    assert schema.upgrade(engine) == schema.head()
    assert schema.differences(engine) == []


def test_a_table_of_another_service_is_neither_taken_nor_changed(engine: sa.Engine) -> None:
    foreign = sa.Table(
        "orders", sa.MetaData(), sa.Column("id", sa.String(36), primary_key=True), sa.Column("x", sa.Text)
    )
    foreign.create(engine)
    for _ in range(2):
        with pytest.raises(Exception, match="orders") as refused:
            schema.upgrade(engine)
        assert "exist" in str(refused.value) or "not retryflow's" in str(refused.value)
    assert [column["name"] for column in sa.inspect(engine).get_columns("orders")] == ["id", "x"]
    assert schema.current(engine) is None
