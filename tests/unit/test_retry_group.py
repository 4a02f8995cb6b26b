"""Group commit: nobody waits for company, nobody pays for another's mistake, nobody is forgotten."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import sqlalchemy as sa

from retryflow.retry.group import Group
from tests.fixtures.rabbit import eventually

PATIENCE_SECONDS = 60.0


class Slow:
    """Does batches; each waits until the test lets it through.

    :ivar batches: what each was given, in the order in which they began.
    """

    def __init__(self, work: Callable[[Any], Any] = lambda item: item * 10) -> None:
        self.batches: list[list[Any]] = []
        self.threads: list[str] = []
        self.work = work
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        self.batches.append(list(items))
        self.threads.append(threading.current_thread().name)
        self.begun.release()
        assert self.allowed.acquire(timeout=PATIENCE_SECONDS)
        return [self.work(item) for item in items]

    def wait_for_batch(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE_SECONDS)

    def let(self, count: int = 1) -> None:
        self.allowed.release(count)


def begin(group: Group[Any, Any], item: Any, *, waits: bool = False) -> "Future[Any]":
    """Do an item in a thread of its own.

    :param waits: return once it stands in the queue.
    """
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(group.do(item))
        except BaseException as error:
            future.set_exception(error)

    before = len(group._waiting)
    threading.Thread(target=work, name=f"thread-{item}", daemon=True).start()
    if waits:
        eventually(lambda: len(group._waiting) == before + 1, "it waits")
    return future


def result(future: "Future[Any]") -> Any:
    return future.result(PATIENCE_SECONDS)


def disconnected() -> sa.exc.OperationalError:
    return sa.exc.OperationalError("COMMIT", {}, Exception("gone"), connection_invalidated=True)


def test_a_thread_alone_begins_at_once_in_its_own_thread() -> None:
    group: Group[int, int] = Group(lambda items: [threading.get_ident() for _ in items])
    assert group.do(1) == threading.get_ident()


def test_who_comes_while_a_batch_is_under_way_is_in_the_next_one_in_the_order_of_coming() -> None:
    slow = Slow()
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    others = [begin(group, item, waits=True) for item in (1, 2, 3)]
    slow.let(2)
    assert [result(future) for future in (first, *others)] == [0, 10, 20, 30]
    assert slow.batches == [[0], [1, 2, 3]]


def test_the_next_batch_is_led_by_one_of_its_own_threads_so_that_no_task_works_for_others_for_ever() -> None:
    slow = Slow()
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    other = begin(group, 1, waits=True)
    slow.let()
    # The first one is done although the second batch has not ended.
    assert result(first) == 0
    slow.wait_for_batch()
    assert not other.done()
    slow.let()
    assert result(other) == 10
    assert slow.threads == ["thread-0", "thread-1"]


def test_a_batch_has_a_largest_size_and_what_is_left_comes_next() -> None:
    slow = Slow()
    group: Group[int, int] = Group(slow, most=2)
    futures = [begin(group, 0)]
    slow.wait_for_batch()
    futures += [begin(group, item, waits=True) for item in (1, 2, 3, 4, 5)]
    slow.let(4)
    assert [result(future) for future in futures] == [0, 10, 20, 30, 40, 50]
    assert slow.batches == [[0], [1, 2], [3, 4], [5]]


def test_several_leaders_run_that_many_batches_at_once_and_no_more() -> None:
    slow = Slow()
    group: Group[int, int] = Group(slow, leaders=2)
    futures = [begin(group, 0), begin(group, 1)]
    slow.wait_for_batch()
    slow.wait_for_batch()
    futures += [begin(group, item, waits=True) for item in (2, 3)]
    assert len(slow.batches) == 2
    slow.let()
    slow.wait_for_batch()
    slow.let(2)
    assert [result(future) for future in futures] == [0, 10, 20, 30]
    assert slow.batches[2] == [2, 3]


def test_after_all_have_gone_the_next_one_begins_at_once_again() -> None:
    slow = Slow()
    group: Group[int, int] = Group(slow)
    for round_ in range(3):
        first = begin(group, 0)
        slow.wait_for_batch()
        second = begin(group, 1, waits=True)
        slow.let(2)
        assert (result(first), result(second)) == (0, 10)
        slow.wait_for_batch()
        assert len(slow.batches) == 2 * (round_ + 1)


def test_p8_one_bad_item_fails_by_itself_and_the_others_do_not() -> None:
    """Promise P8: the batch is done again, each item alone."""

    def work(item: int) -> int:
        if item == 2:
            raise ValueError(f"item {item}")
        return item * 10

    slow = Slow(work)
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    others = [begin(group, item, waits=True) for item in (1, 2, 3)]
    slow.let(10)
    assert result(first) == 0
    assert (result(others[0]), result(others[2])) == (10, 30)
    with pytest.raises(ValueError, match="item 2"):
        result(others[1])
    assert slow.batches[:2] == [[0], [1, 2, 3]]
    assert sorted(slow.batches[2:]) == [[1], [2], [3]]


def test_a_lost_connection_fails_the_batch_without_asking_a_silent_database_again_for_each() -> None:
    def work(item: int) -> int:
        if item:
            raise disconnected()
        return 0

    slow = Slow(work)
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    others = [begin(group, item, waits=True) for item in (1, 2)]
    slow.let(10)
    assert result(first) == 0
    for future in others:
        with pytest.raises(sa.exc.OperationalError):
            result(future)
    assert slow.batches == [[0], [1, 2]]


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_whatever_is_raised_leaves_nobody_waiting_and_the_group_in_order(raised: BaseException) -> None:
    def work(item: int) -> int:
        if item < 0:
            raise raised
        return item

    slow = Slow(work)
    group: Group[int, int] = Group(slow)
    first = begin(group, -1)
    slow.wait_for_batch()
    others = [begin(group, item, waits=True) for item in (-2, 5)]
    slow.let(10)
    for future in (first, others[0]):
        with pytest.raises(type(raised)):
            result(future)
    assert result(others[1]) == 5
    assert group.do(7) == 7


def test_a_run_that_returns_too_few_results_gives_nobody_anothers_result() -> None:
    calls = []

    def run(items: Sequence[int]) -> list[int]:
        calls.append(list(items))
        if len(calls) == 1:
            ready.set()
            assert go.wait(PATIENCE_SECONDS)
        return [item * 10 for item in items[:1]]

    ready, go = threading.Event(), threading.Event()
    group: Group[int, int] = Group(run)
    futures = [begin(group, 0)]
    assert ready.wait(PATIENCE_SECONDS)
    futures += [begin(group, item, waits=True) for item in (1, 2)]
    go.set()
    assert [result(future) for future in futures] == [0, 10, 20]
    assert calls[:2] == [[0], [1, 2]]
    assert sorted(calls[2:]) == [[1], [2]]


def test_many_threads_at_once_each_get_their_own_result() -> None:
    sizes = []

    def run(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        if any(item % 50 == 49 for item in items):
            raise ValueError("bad")
        return [item * 10 for item in items]

    group: Group[int, int] = Group(run, most=5)
    outcomes: dict[int, Any] = {}

    def work(start: int) -> None:
        for item in range(start, start + 50):
            try:
                outcomes[item] = group.do(item)
            except ValueError:
                outcomes[item] = "bad"

    threads = [threading.Thread(target=work, args=(start,), daemon=True) for start in range(0, 800, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert outcomes == {item: "bad" if item % 50 == 49 else item * 10 for item in range(800)}
    assert max(sizes) <= 5
    assert (group._waiting, group._free_leaders) == ([], 1)


class Told:
    """What came of items that were left to others."""

    def __init__(self) -> None:
        self.words: dict[int, Any] = {}

    def of(self, item: int) -> Callable[[Any, BaseException | None], None]:
        def done(result: Any, error: BaseException | None) -> None:
            self.words[item] = error or result

        return done


def test_what_is_left_to_others_is_in_the_next_batch_and_its_thread_goes_on() -> None:
    slow, told = Slow(), Told()
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    for item in (1, 2):
        group.later(item, told.of(item))  # returns, although the first batch is not over
    slow.let(2)
    assert result(first) == 0
    eventually(lambda: told.words == {1: 10, 2: 20}, "they are told")
    assert slow.batches == [[0], [1, 2]]


def test_where_nobody_is_at_work_a_thread_of_the_groups_own_is_until_nothing_is_left() -> None:
    slow, told = Slow(), Told()
    group: Group[int, int] = Group(slow)
    for round_ in range(2):
        group.later(0, told.of(0))
        slow.wait_for_batch()
        group.later(1, told.of(1))
        slow.let()
        slow.wait_for_batch()
        group.later(2, told.of(2))
        slow.let(2)
        eventually(lambda: told.words == {0: 0, 1: 10, 2: 20}, "they are told")
        assert slow.batches == [[0], [1], [2]] * (round_ + 1)
        slow.wait_for_batch()
        told.words.clear()
    assert slow.threads == ["group"] * 6
    slow.let()
    assert group.do(3) == 30


def test_one_who_waits_leads_the_batch_of_those_who_do_not() -> None:
    slow, told = Slow(), Told()
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    group.later(1, told.of(1))
    second = begin(group, 2, waits=True)
    slow.let(2)
    assert (result(first), result(second)) == (0, 20)
    eventually(lambda: told.words == {1: 10}, "it is told")
    assert slow.threads == ["thread-0", "thread-2"]


def test_one_who_waits_is_not_kept_for_those_who_do_not(caplog: pytest.LogCaptureFixture) -> None:
    slow, told = Slow(), Told()
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    group.later(1, told.of(1))
    slow.let()
    # The first one is done although the others' batch is not.
    assert result(first) == 0
    slow.wait_for_batch()
    assert slow.threads == ["thread-0", "group"]
    slow.let()
    eventually(lambda: told.words == {1: 10}, "it is told")


def test_where_no_thread_can_be_started_who_leaves_something_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    group: Group[int, int] = Group(lambda items: [item * 10 for item in items])

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        group.later(1, told.of(1))
    assert told.words == {1: 10}
    group.later(2, told.of(2))
    eventually(lambda: told.words == {1: 10, 2: 20}, "there are threads again")


def test_of_a_batch_done_one_by_one_each_is_told_at_once() -> None:
    def work(item: int) -> int:
        if item == 1 and len(slow.batches) == 2:
            raise ValueError
        return item

    slow, told = Slow(work), Told()
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    for item in (1, 2):
        group.later(item, told.of(item))
    slow.let(3)  # the first, the batch that fails, and one of its two
    assert result(first) == 0
    eventually(lambda: told.words == {1: 1}, "it does not wait for the other")
    slow.let()
    eventually(lambda: told.words == {1: 1, 2: 2}, "both are told")


def test_with_too_much_left_over_the_next_one_waits() -> None:
    slow, told = Slow(), Told()
    group: Group[int, int] = Group(slow, backlog=1)
    first = begin(group, 0)
    slow.wait_for_batch()
    group.later(1, told.of(1))
    waiter = threading.Thread(target=group.later, args=(2, told.of(2)), daemon=True)
    waiter.start()
    eventually(lambda: len(group._waiting) == 2, "it waits")
    assert waiter.is_alive()
    slow.let(2)
    waiter.join(PATIENCE_SECONDS)
    assert result(first) == 0
    assert told.words == {1: 10, 2: 20}


def test_p8_of_those_left_to_others_only_the_bad_one_is_told_of_its_error() -> None:
    """Promise P8."""

    def work(item: int) -> int:
        if item == 2:
            raise ValueError(f"item {item}")
        return item

    slow, told = Slow(work), Told()
    group: Group[int, int] = Group(slow)
    first = begin(group, 0)
    slow.wait_for_batch()
    for item in (1, 2, 3):
        group.later(item, told.of(item))
    slow.let(10)
    assert result(first) == 0
    eventually(lambda: len(told.words) == 3, "all are told")
    assert (told.words[1], told.words[3]) == (1, 3)
    assert isinstance(told.words[2], ValueError)


def test_one_whose_word_cannot_be_told_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    slow, told = Slow(), Told()
    group: Group[int, int] = Group(slow)

    def broken(_result: Any, _error: BaseException | None) -> None:
        raise SystemExit(1)

    first = begin(group, 0)
    slow.wait_for_batch()
    group.later(1, broken)
    group.later(2, told.of(2))
    slow.let(10)
    assert result(first) == 0
    eventually(lambda: told.words == {2: 20}, "it is told")
    assert group.do(3) == 30
    assert "Unexpected error after a batch" in caplog.text
