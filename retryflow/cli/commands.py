"""The names of the commands and where they are; none is imported before it is called."""

from importlib.metadata import EntryPoint

from cliff import commandmanager

NAMESPACE = "retryflow.cli"

COMMANDS = {
    "order create": "order_create:OrderCreate",
    "order list": "order_list:OrderList",
    "order show": "order_show:OrderShow",
    "order retry": "order_steer:OrderRetry",
    "order cancel": "order_steer:OrderCancel",
    "order delete": "order_steer:OrderDelete",
    "retry list": "retry_list:RetryList",
    "retry run-now": "retry_now:RetryRunNow",
    "lease list": "lease_list:LeaseList",
    "worker list": "worker_list:WorkerList",
    "lock show": "lock:LockShow",
    "lock break": "lock:LockBreak",
    "stats": "stats:Stats",
    "top": "top:Top",
    "doctor": "doctor:Doctor",
    "db upgrade": "db_schema:DbUpgrade",
    "db current": "db_schema:DbCurrent",
    "db history": "db_schema:DbHistory",
    "db check": "db_schema:DbCheck",
    "db purge": "db_purge:DbPurge",
}


class Commands(commandmanager.CommandManager):
    """All commands, loaded one by one when they are called."""

    def __init__(self) -> None:
        super().__init__(None)
        # The prefix of the stevedore namespaces in which a site may hang hooks on a command.
        self.namespace = NAMESPACE
        for name, place in COMMANDS.items():
            self.commands[name] = EntryPoint(name, f"{__package__}.{place}", NAMESPACE)

    def suggestions(self, words: list[str]) -> list[str]:
        """Commands that somebody may have meant by ``words``, which are none."""
        asked = " ".join(words)
        known = sorted(name for name in self.commands if name != "complete")
        starting = [name for name in known if name.startswith(asked) or asked.startswith(name)]
        return starting or [name for name in known if name.split()[0] == words[0]]
