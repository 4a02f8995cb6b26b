"""A service of ten lines, with a manager of its own and no database: a stop waits for the greetings in progress."""

import sys
import time
from typing import Any

from retryflow.service.plain import Manager, expose, serve


class Greeter(Manager):
    @expose
    def greet(self, context: Any, name: str, seconds: float = 1.0) -> str:
        print(f"Greeting {name}", flush=True)
        time.sleep(seconds)
        return f"Hello {name}"


if __name__ == "__main__":
    serve(Greeter, topic="greetings", argv=sys.argv[1:])
