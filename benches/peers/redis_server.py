"""A Redis of our own, and the little of its protocol that is needed here."""

import re
import socket
import time

from process import PATIENCE, Failed, free_port

# The number of hash slots of every cluster.
SLOTS = 16_384


class RedisServer:
    """Without persistence, on the core of the load."""

    def __init__(self, bench, core="load", options=()):
        directory, self.port = bench.workspace.directory("redis"), free_port()
        command = [
            "redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--dir", directory, "--io-threads", 1, *options,
        ]
        self.child = bench.workspace.start("redis", command, directory, core, self.port)
        self.socket = socket.create_connection(("127.0.0.1", self.port), 10)
        self.reader = self.socket.makefile("rb")

    def ask(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        text = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        self.socket.sendall(text)
        return self._reply()

    def info(self, field):
        """A field of INFO, such as `cmdstat_evalsha`."""
        for line in self.ask("INFO", "everything").decode().splitlines():
            if line.startswith(field + ":"):
                return line.split(":", 1)[1]
        return ""

    def cpu(self):
        """Microseconds so far."""
        return self.child.cpu()

    def calls(self):
        """Script calls so far."""
        kinds = (self.info(f"cmdstat_{name}") for name in ("evalsha", "fcall"))
        found = (re.match(r"calls=(\d+)", kind) for kind in kinds)
        return sum(int(calls.group(1)) for calls in found if calls)

    def _reply(self):
        line = self.reader.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.reader.read(length + 2)[:-2]
        if kind == b":":
            return int(rest)
        if kind == b"-":
            raise OSError(f"redis: {rest.decode()}")
        return rest


class RedisCluster:
    """Three masters, each with a third of the slots."""

    def __init__(self, bench):
        buses = [free_port() for _ in range(3)]
        options = ["--cluster-enabled", "yes", "--cluster-port"]
        self.servers = [RedisServer(bench, options=[*options, bus]) for bus in buses]
        # Any of them names the others.
        self.port = self.servers[0].port
        for place, (server, bus) in enumerate(zip(self.servers, buses)):
            first, end = SLOTS * place // 3, SLOTS * (place + 1) // 3
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
            self.servers[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        deadline = time.monotonic() + PATIENCE
        while not all(map(self._is_whole, self.servers)):
            if time.monotonic() > deadline:
                raise Failed("the cluster does not become whole")
            time.sleep(0.05)

    def cpu(self):
        return sum(server.cpu() for server in self.servers)

    def calls(self):
        return sum(server.calls() for server in self.servers)

    def _is_whole(self, server):
        info = server.ask("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in info and "cluster_known_nodes:3" in info
