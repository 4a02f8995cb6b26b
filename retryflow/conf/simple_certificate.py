"""Options of SimpleCertificatePlugin, the demonstration certificate authority (retry specification, NF-3)."""

from oslo_config import cfg

GROUP = cfg.OptGroup(
    "simple_certificate",
    title="Demonstration certificate authority",
    help="SimpleCertificatePlugin signs with a local key. It shows how orders are retried; trust it with nothing.",
)
OPTIONS: list[cfg.Opt] = [
    cfg.FloatOpt(
        "delay_before_update_seconds",
        default=5.0,
        min=0.0,
        max=2592000.0,
        mutable=True,
        help="Seconds that the authority keeps an order waiting before it signs, as a real one does for days. "
        "0 signs at the first status check.",
    ),
    cfg.StrOpt(
        "ca_directory",
        default="$state_path/simple_ca",
        help="Directory of the authority's certificate and key, both made on first use; the key file gets mode 0600. "
        "Workers on several hosts need the same directory, on shared storage or copied there once.",
    ),
    cfg.StrOpt(
        "outage_file",
        mutable=True,
        help="While a file of this name exists the authority plays dead, so that an outage can be rehearsed: orders "
        "stay PENDING and are retried with backoff. Not set: no rehearsal.",
    ),
    cfg.IntOpt(
        "certificate_days",
        default=365,
        min=1,
        max=3650,
        mutable=True,
        help="Days for which a certificate signed from now on is valid; those signed before keep theirs.",
    ),
    cfg.FloatOpt(
        "signing_seconds",
        default=0.0,
        min=0.0,
        max=86400.0,
        mutable=True,
        help="Seconds that signing takes, with the task running all the while, as at a slow authority. For rehearsals "
        "of a worker's stop: it waits for the task, and interrupts it if this is longer than manager_shutdown_timeout. "
        "0 signs at once.",
    ),
]
