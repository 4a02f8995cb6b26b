"""What the launchers of the daemons share: the checkout's package, and an interpreter that has what it needs."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

BIN = Path(__file__).resolve().parent


def enter(daemon: str) -> None:
    """Make the checkout's package importable, in an interpreter with its libraries.

    An interpreter without them, such as the system's, is replaced by the one of the checkout's virtual environment.

    :param daemon: the daemon's name, for the script beside this file that knows that environment.
    """
    sys.path.insert(0, str(BIN.parent))
    environment = Path(os.environ.get("RETRYFLOW_VENV") or BIN.parent / ".venv")
    # Never from the environment itself: the script would come back here, and so on.
    if find_spec("oslo_service") is None and Path(sys.prefix).resolve() != environment.resolve():
        script = str(BIN / f"{daemon}.sh")
        os.execv(script, [script, *sys.argv[1:]])
