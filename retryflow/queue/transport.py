"""Where the message bus is, and what kind it is."""

from importlib.metadata import entry_points
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_messaging import exceptions

from retryflow.conf import register_all
from retryflow.errors import ConfigurationError

STANDALONE_URL = "fake://"
IN_PROCESS = ("fake", "kombu+memory")
RABBIT = "rabbit"


def get_transport(conf: cfg.ConfigOpts, url: str | None = None) -> oslo_messaging.Transport:
    """Make the transport for tickets and RPC.

    Call it after the process has forked: connections are made on first use, but their pool must not be shared.
    retryflow's defaults of other libraries' options hold here (own ``control_exchange``, quorum queues, see
    :mod:`retryflow.conf.library`); what the operator has set wins.

    :param url: in place of ``[DEFAULT] transport_url``.
    :raises retryflow.errors.ConfigurationError: the URL cannot be used; the message does not repeat it, since there is
        a password in it.
    """
    register_all(conf)
    try:
        transport = oslo_messaging.get_rpc_transport(conf, url)
    except ImportError as error:
        raise _unusable(f"a library is missing: {error.name}") from None
    except (exceptions.MessagingException, cfg.Error, ValueError, RuntimeError) as error:
        # Those of DriverLoadFailure name the driver only; a parser's own text may hold the whole URL.
        what = f"no driver for {error.driver}" if isinstance(error, oslo_messaging.DriverLoadFailure) else "not a URL"
        raise _unusable(what) from None
    # oslo.messaging puts them into another URL and leaves a slash as it is; that one's parser shows what is before it.
    if is_rabbit(transport) and any(
        "/" in (host.username or "") + (host.password or "") for host in transport._driver._url.hosts
    ):
        raise _unusable("oslo.messaging cannot use a user or password with a slash in it, change it")
    return transport


def refuse_unknown_driver(conf: cfg.ConfigOpts) -> None:
    """Refuse a kind of transport that is not installed, before anything is made or waited for.

    :raises retryflow.errors.ConfigurationError: that of :func:`get_transport`, here without a library's warning.
    """
    kind, is_url, _ = str(conf.transport_url).partition("://")
    if is_url and kind.partition("+")[0] not in entry_points(group="oslo.messaging.drivers").names:
        raise _unusable(f"no driver for {kind}")
    if kind.startswith("kombu+"):
        from kombu.transport import resolve_transport

        try:
            resolve_transport(kind.removeprefix("kombu+"))
        except Exception as error:  # noqa: BLE001 - kombu's modules fail in ways of their own where a library is missing
            raise _unusable(f"the library for {kind} cannot be loaded ({type(error).__name__})") from None


def _unusable(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"[DEFAULT] transport_url cannot be used ({what}); expected rabbit://user:password@host:port/virtual_host"
    )


def set_standalone_default(conf: cfg.ConfigOpts) -> None:
    """Make the in-process transport the default; a ``transport_url`` that the operator has set wins."""
    register_all(conf)
    conf.set_default("transport_url", STANDALONE_URL)


def is_in_process(conf_or_url: cfg.ConfigOpts | str) -> bool:
    """Whether messages stay in this process, so that no other one can ever receive them.

    :param conf_or_url: the configuration, of which ``[DEFAULT] transport_url`` is looked at, or a transport URL.
    """
    url = conf_or_url if isinstance(conf_or_url, str) else conf_or_url.transport_url
    return str(url).partition("://")[0] in IN_PROCESS


def is_rabbit(transport: oslo_messaging.Transport) -> bool:
    """Whether the transport is RabbitMQ over AMQP, where tickets are burst and acknowledged after the claim."""
    from oslo_messaging._drivers import impl_rabbit

    # The same driver class serves the kombu+... URLs, which are other protocols.
    driver = transport._driver
    return isinstance(driver, impl_rabbit.RabbitDriver) and driver._url.transport == RABBIT


def broker_of(transport: oslo_messaging.Transport) -> str:
    """Where the broker is, for log lines: hosts without user and password."""
    url: Any = transport._driver._url
    hosts = ",".join(f"{host.hostname or 'localhost'}:{host.port or 5672}" for host in url.hosts) or "localhost"
    return f"{url.transport}://{hosts}/{url.virtual_host or ''}"
