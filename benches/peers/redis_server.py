"""A Redis of our own, and the little of its protocol that is needed here."""

import re
import socket

from process import free_port


class RedisServer:
    """Without persistence, on the core of the load."""

    def __init__(self, bench, core="load"):
        directory, self.port = bench.workspace.directory("redis"), free_port()
        command = [
            "redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--dir", directory, "--io-threads", 1,
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
