"""The proxies that are compared, each with an equivalent configuration.

A `Setup` says what is wanted in words that every peer knows; `nginx.py`, `haproxy.py`, `envoy.py`
and `tidegate.py` say it in the peer's own.
"""

from dataclasses import dataclass
from pathlib import Path

import envoy
import haproxy
import nginx
import tidegate
from certificate import Certificate
from process import free_port


@dataclass(frozen=True)
class Setup:
    """What a proxy has to be for a scenario."""

    # The port of the upstream on 127.0.0.1; None: the proxy answers 200 itself.
    upstream: int | None
    # What the limit counts by: "ip", "header" (x-api-key), or "claim" (`sub` of a token).
    key: str = "ip"
    # The PEM file with the key that verifies tokens. tidegate alone reads tokens.
    jwt: Path | None = None
    # "open": a million a second. "closed": one request, and no second one within a minute.
    rate: str = "open"
    workers: int = 1
    # 1: everything goes one way. More: /r/0/…, /r/1/… …, each a route of its own.
    routes: int = 1
    # Limits, each for an equal part of the routes.
    limits: int = 1
    # What the clients speak: "h1", or "h2" with prior knowledge. Over TLS they choose by ALPN.
    protocol: str = "h1"
    # The certificate, where clients come over TLS.
    tls: Certificate | None = None
    # "small" answers, or bodies of a gigabyte.
    bodies: str = "small"
    # The port of Redis on 127.0.0.1; None: buckets in the process. tidegate knows it, and
    # nginx with lua.
    redis: int | None = None
    # That Redis belongs to a cluster. tidegate alone can.
    cluster: bool = False
    # Limits of each request. tidegate alone knows more than one.
    limits_each: int = 1


@dataclass(frozen=True)
class Peer:
    """A program that can be started."""

    name: str
    binary: Path
    module: object

    def version(self):
        return self.module.version(self.binary)

    def start(self, workspace, setup, core="proxy"):
        """Starts it on these cores; the answer has `port`, and what `Child` has."""
        directory = workspace.directory(self.name.replace(" ", "-").replace("/", "-"))
        port = free_port()
        command = self.module.prepare(self.binary, directory, setup, port)
        child = workspace.start(self.name, command, directory, core, port)
        child.port = port
        child.directory = directory
        return child


MODULES = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy, "tidegate": tidegate}

