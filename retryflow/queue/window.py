"""How many messages the broker may push to us: the arithmetic, without any broker.

The broker pushes until as many messages are unanswered as the subscription's prefetch says. A message is answered while
its task still runs, so that a fixed prefetch would let in a second helping while all threads are busy. So answers of
running tasks are held for a moment: most tasks are over by then. Those that are not get their answer under a new,
smaller subscription.
"""

HOLD_SECONDS = 1.0
STALL_SECONDS = 0.05


class Window:
    """The prefetch of the present subscription, and whether it should be another one.

    Unless a message is answered before its task begins, this holds: messages in hand that do not belong to the present
    subscription, plus its prefetch, are at most ``capacity``.

    :param capacity: messages this process may have in hand: one for each thread, and the read-ahead.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.prefetch = 0
        self._unanswered = 0
        self._stalled_since: float | None = None

    def open(self, in_hand: int) -> int:
        """Begin a subscription; returns its prefetch, which may be 0: none, then."""
        self.close()
        self.prefetch = self._room(in_hand)
        return self.prefetch

    def close(self) -> None:
        """The subscription has ended; its unanswered messages are just in hand from now on."""
        self.prefetch = self._unanswered = 0
        self._stalled_since = None

    def received(self) -> None:
        """A message of the present subscription has come in."""
        self._unanswered += 1

    def answered(self) -> None:
        """One of them has been acknowledged or given back."""
        self._unanswered -= 1

    def should_change(self, in_hand: int, now: float) -> bool:
        """Whether the present subscription lets in too little; a new one costs a few round trips, so not lightly."""
        room = self._room(in_hand)
        if not room:
            self._stalled_since = None
            return False
        if not in_hand:
            return self.prefetch < self.capacity
        if room >= 2 * self.prefetch:
            return True
        # In a stream of short tasks this is so again and again, for less than a millisecond.
        if self._unanswered < self.prefetch:
            self._stalled_since = None
            return False
        if self._stalled_since is None:
            self._stalled_since = now
        return now >= self._stalled_since + STALL_SECONDS

    @property
    def look_again_at(self) -> float | None:
        """When the answer of :meth:`should_change` may become another one without any message."""
        return None if self._stalled_since is None else self._stalled_since + STALL_SECONDS

    def _room(self, in_hand: int) -> int:
        return max(0, self.capacity - in_hand)
