"""Whether the database may be believed when it says that a lease has run out (a database outage is not a crash)."""

from __future__ import annotations

import time
from collections.abc import Callable

LARGEST_DRIFT_SECONDS = 2.0
#: Time for holders to connect and renew after an outage that nobody here has seen.
GRACE_SECONDS = 3.0


class DatabaseTrust:
    """Believes the database after one whole lease time of answers with a clock that keeps pace with our own.

    While it was away, no holder could renew; and a clock that jumps ahead ends every lease at once. Either way the
    holders
    get the time to renew first.

    :param needed_seconds: the lease time.
    :param longest_gap_seconds: between two answers that are further apart the database may have been away for so long
        that a lease ended. Its holder gets a moment then, before that lease is recovered.
    """

    def __init__(
        self,
        *,
        needed_seconds: float,
        longest_gap_seconds: float = float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._needed_seconds = needed_seconds
        self._longest_gap_seconds = longest_gap_seconds
        self._clock = clock
        self._seen_at: float | None = None
        self._doubtful_until = float("-inf")
        self._since: float | None = None
        self._offset = 0.0

    def saw(self, database_seconds: float) -> None:
        """The database answered, and its clock showed this many seconds (since any fixed moment)."""
        own = self._clock()
        offset = database_seconds - own
        if self._seen_at is not None and own - self._seen_at >= self._longest_gap_seconds:
            self._doubtful_until = own + GRACE_SECONDS
        self._seen_at = own
        if self._since is None or abs(offset - self._offset) > LARGEST_DRIFT_SECONDS:
            self._since = own
            self._offset = offset

    def failed(self) -> None:
        """The database did not answer."""
        self._since = None

    @property
    def remaining_seconds(self) -> float:
        """How long until recovery is allowed; 0 when it is."""
        if self._since is None:
            return self._needed_seconds
        now = self._clock()
        return max(0.0, self._since + self._needed_seconds - now, self._doubtful_until - now)

    @property
    def allows_recovery(self) -> bool:
        """Whether held leases that have run out may be recovered."""
        return self.remaining_seconds == 0.0
