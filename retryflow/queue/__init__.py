"""The message bus: tickets are sent and received here."""

from retryflow.conf.backend import prefer_threading

# Before any module of this room imports oslo.messaging.
prefer_threading()
