"""oslo.service on its threading backend: the first import decides, so every module of this room takes it from here."""

import importlib
from typing import Any

from oslo_service.backend.exceptions import BackendAlreadySelected

from retryflow.conf.backend import select_threading
from retryflow.errors import RetryflowError

try:
    select_threading()
except BackendAlreadySelected as error:
    raise RetryflowError(
        "oslo.service runs on the eventlet backend already, and retryflow needs threads; import retryflow.queue or "
        "retryflow.service.plain before oslo_messaging and oslo_service.service"
    ) from error

periodic_task: Any = importlib.import_module("oslo_service.periodic_task")
service: Any = importlib.import_module("oslo_service.service")
systemd: Any = importlib.import_module("oslo_service.systemd")
