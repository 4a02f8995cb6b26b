"""Whether the database may be believed that a lease has run out: an outage or a clock step is not a crash."""

from hypothesis import given
from hypothesis import strategies as st

from retryflow.retry.trust import GRACE_SECONDS, LARGEST_DRIFT_SECONDS, DatabaseTrust
from tests.fixtures.retry_list import Clock


def test_trust_takes_one_whole_lease_time() -> None:
    clock = Clock()
    trust = DatabaseTrust(needed_seconds=20.0, clock=clock)
    assert not trust.allows_recovery
    assert trust.remaining_seconds == 20.0
    trust.saw(5.0)
    clock.advance(19.9)
    trust.saw(24.9)
    assert not trust.allows_recovery
    clock.advance(0.1)
    trust.saw(25.0)
    assert trust.allows_recovery


def test_an_outage_starts_it_anew() -> None:
    clock = Clock()
    trust = DatabaseTrust(needed_seconds=20.0, clock=clock)
    trust.saw(0.0)
    clock.advance(30.0)
    trust.saw(30.0)
    assert trust.allows_recovery
    trust.failed()
    assert not trust.allows_recovery
    clock.advance(30.0)
    assert not trust.allows_recovery, "as long as the database has not answered"
    trust.saw(60.0)
    assert trust.remaining_seconds == 20.0


def test_after_a_gap_in_which_an_outage_may_have_been_holders_get_a_moment_to_renew() -> None:
    clock = Clock()
    trust = DatabaseTrust(needed_seconds=20.0, longest_gap_seconds=15.0, clock=clock)
    for seconds in (0.0, 10.0, 10.0):
        clock.advance(seconds)
        trust.saw(clock())
    assert trust.allows_recovery
    clock.advance(14.9)
    trust.saw(clock())
    assert trust.allows_recovery, "whatever was away for so short a time has ended no lease"
    clock.advance(15.0)
    trust.saw(clock())
    assert trust.remaining_seconds == GRACE_SECONDS
    clock.advance(GRACE_SECONDS)
    trust.saw(clock())
    assert trust.allows_recovery


def test_a_clock_step_in_either_direction_starts_it_anew() -> None:
    for step in (+LARGEST_DRIFT_SECONDS * 1.1, -LARGEST_DRIFT_SECONDS * 1.1, +3600.0, -3600.0):
        clock = Clock()
        trust = DatabaseTrust(needed_seconds=20.0, clock=clock)
        trust.saw(0.0)
        clock.advance(30.0)
        trust.saw(30.0)
        assert trust.allows_recovery
        trust.saw(30.0 + step)
        assert not trust.allows_recovery
        clock.advance(20.0)
        trust.saw(50.0 + step)
        assert trust.allows_recovery, "it is believed again when it keeps pace"


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=50))
def test_answers_that_arrive_a_little_late_cost_no_trust(delays: list[float]) -> None:
    clock = Clock()
    trust = DatabaseTrust(needed_seconds=20.0, clock=clock)
    trust.saw(clock())
    clock.advance(20.0)
    for delay in delays:
        clock.advance(1.0)
        trust.saw(clock() + delay)
        assert trust.allows_recovery


@given(st.floats(-(10.0**9), 10.0**9), st.lists(st.sampled_from(["saw", "failed", "jump"]), max_size=30))
def test_it_is_never_believed_sooner_than_a_lease_time_after_the_last_trouble(start: float, story: list[str]) -> None:
    clock = Clock()
    trust = DatabaseTrust(needed_seconds=20.0, clock=clock)
    database, quiet_since = start, None
    for event in story:
        clock.advance(7.0)
        database += 7.0
        if event == "failed":
            trust.failed()
            quiet_since = None
            continue
        if event == "jump":
            database += 1000.0
        trust.saw(database)
        if event == "jump" or quiet_since is None:
            quiet_since = clock()
        assert trust.allows_recovery == (clock() - quiet_since >= 20.0)
