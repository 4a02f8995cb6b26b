"""Options of the built-in order type ``certificate``."""

from oslo_config import cfg

GROUP = cfg.OptGroup("certificate", title="Certificate orders", help="Orders of the type certificate.")
OPTIONS: list[cfg.Opt] = [
    cfg.ListOpt(
        "enabled_certificate_plugins",
        default=["simple_certificate"],
        help="Certificate plugins in use, by their names in the entry point group retryflow.certificate_plugins. An "
        "order that names none is given to the first that supports it. Every worker needs the same list.",
    ),
]
