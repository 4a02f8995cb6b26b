"""Where a process tells its health: which file, which address, when several processes share one configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

from retryflow.errors import ConfigurationError

Address = tuple[str, int] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which process this is.

    :param prog: the program's name.
    :param number: of the worker process, from 0.
    :param several: whether there are more than one under the same master.
    """

    prog: str
    number: int = 0
    several: bool = False

    def file(self, template: str) -> Path:
        """:param template: ``[health] file``.
        :returns: this process's own file."""
        return Path(self._filled(template))

    def address(self, template: str) -> Address:
        """:param template: ``[health] address``.
        :returns: path of a UNIX socket, or host and port.
        :raises ConfigurationError: it is neither.
        """
        if template.startswith("/"):
            return self._filled(template)
        host, separator, port = template.rpartition(":")
        number = int(port) + self.number if port.isascii() and port.isdecimal() and len(port) < 6 else 0
        if not separator or not 0 < number < 65536:
            raise ConfigurationError(
                f"[health] address {template!r} is neither host:port nor the absolute path of a UNIX socket; write it "
                "like 127.0.0.1:9080, [::1]:9080 or /run/retryflow/{prog}.sock"
            )
        return host.strip("[]"), number

    def _filled(self, template: str) -> str:
        own = "{number}" in template or "{pid}" in template
        filled = template.replace("{prog}", self.prog).replace("{number}", str(self.number))
        filled = filled.replace("{pid}", str(os.getpid()))
        return f"{filled}.{self.number}" if self.several and not own else filled


def place_of(conf: cfg.ConfigOpts, *, number: int, several: bool) -> Place:
    """:returns: the place of this process."""
    # A service of somebody else's may not have parsed a command line.
    prog = getattr(conf, "prog", None) or "retryflow"
    return Place(prog=str(prog), number=number, several=several)
