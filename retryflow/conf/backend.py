"""The choice of oslo.service's backend, which has to come before nearly every other import."""

import sys
from typing import cast

from oslo_service import backend


def select_threading() -> None:
    """Select the threading backend of oslo.service, and keep eventlet out of this process.

    oslo.messaging, when it is imported, settles on whatever backend is selected, and on eventlet if none is. So this
    is called by the packages of the commands, before the modules in them import anything; what a service of somebody
    else imports calls :func:`prefer_threading`. Calling it again does nothing.

    :raises oslo_service.backend.exceptions.BackendAlreadySelected: the process has settled on eventlet.
    """
    if "eventlet" not in sys.modules:
        # oslo.service depends on eventlet although the threading backend never uses it, and three libraries import it
        # wherever they find it: a quarter of a second and a deprecation warning at each start.
        cast(dict[str, object], sys.modules)["eventlet"] = None
    backend.init_backend(backend.BackendType.THREADING)


def prefer_threading() -> None:
    """Select the threading backend of oslo.service where nobody has chosen one, before oslo.messaging is imported.

    Called wherever retryflow imports oslo.messaging, which would settle on eventlet for a process that never asked for
    it. A process that has chosen, or that runs on eventlet's patches, keeps what it has.
    """
    patcher = sys.modules.get("eventlet.patcher")
    is_patched = patcher is not None and any(patcher.is_monkey_patched(name) for name in ("thread", "socket"))
    if backend.get_backend_type() is None and not is_patched:
        backend.init_backend(backend.BackendType.THREADING)
