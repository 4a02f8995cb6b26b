"""Whose fault a failed transaction is: the row's own, or the world's around it."""

from retryflow.errors import LockLost
from retryflow.model.refusal import lacks_rights
from retryflow.model.transaction import passes


def is_the_rows_fault(error: Exception) -> bool:
    """Whether a transaction failed because of what it was to write, so that it would fail in the next tick as well.

    Only then is a batch halved or a row set aside (promise P8); after a deadlock, a lost connection or a lost lock, and
    while the database is full or read-only, the rows are as good as before.
    """
    return not (isinstance(error, LockLost) or passes(error) or lacks_rights(error))
