"""The work by which scripts/dist gets its profile: `train.py PROGRAM LOAD`, where LOAD is benches/peers/load.rs.

Always the same requests, in numbers that make each kind about as frequent as the others. Each proxy must end by itself:
a program writes its counts when it ends.
"""

import gzip
import re
import socket
import socketserver
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches" / "peers"))

import calls
import certificate
import machine
import tidegate
from measure import Bench
from peers import Peer, Setup
from process import Failed, Workspace, free_port
from redis_server import RedisServer

REQUESTS = 20_000
# As scripts/bench has them: 64 connections; 8 with 16 requests at once on each.
HTTP1, HTTP2 = ("--h1", "-c64"), ("-c8", "-m16")
# Connections over TLS that have one request each.
HANDSHAKES = 1_000
# One long body each way, and many shorter ones.
LONG_BODY = 64 << 20
BODIES, BODY = 10_000, 64 << 10
UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGlkZWdhdGUgdGlkZWdhdA==\r\n\r\n"
)
# The proxy does not look into what is in a WebSocket.
MESSAGE, MESSAGES = b"message!" * 16, 10_000
# An instrumented program may take this many seconds to end.
PATIENCE = 30


def main():
    program, load = (Path(word).resolve() for word in sys.argv[1:])
    workspace = Workspace({name: machine.cores()["all"] for name in ("proxy", "load", "all")})
    training = Training(Bench(workspace, [], SimpleNamespace(nginx=None), load), program)
    for name, work in (
        ("forward and reject", training.one_key),
        ("many keys", training.many_keys),
        ("limits in Redis", training.shared),
        ("TLS", training.tls),
        ("HTTP/2 in clear text", training.http2),
        ("bodies", training.bodies),
        ("a WebSocket", training.tunnel),
        ("decisions for other proxies", training.decisions),
        ("replay", training.replay),
    ):
        began = time.monotonic()
        work()
        print(f"trained by {name}: {time.monotonic() - began:.1f} s", file=sys.stderr)


class Training:
    def __init__(self, bench, program):
        self.bench = bench
        self.program = program
        self.upstream = free_port()
        bench.load.serve(self.upstream)

    def one_key(self):
        for rate, status in (("open", 200), ("closed", 429)):
            with self._proxy(rate=rate) as proxy:
                self._requests(proxy, *HTTP1, status=status)

    def many_keys(self):
        with self._proxy(key="header") as proxy:
            self.bench.load.keys(proxy.port, REQUESTS)

    def shared(self):
        redis = RedisServer(self.bench, core="all")
        for rate, status in (("open", 200), ("closed", 429)):
            with self._proxy(rate=rate, redis=redis.port) as proxy:
                self._requests(proxy, *HTTP1, status=status)
        with self._proxy(key="header", redis=redis.port) as proxy:
            self.bench.load.keys(proxy.port, REQUESTS)

    def tls(self):
        with self._proxy(tls=certificate.make(self.bench)) as proxy:
            self._requests(proxy, *HTTP1, scheme="https")
            self._requests(proxy, *HTTP2, scheme="https")
            self._requests(proxy, "--h1", f"-c{HANDSHAKES}", scheme="https", requests=HANDSHAKES)

    def http2(self):
        with self._proxy(protocol="h2") as proxy:
            self._requests(proxy, *HTTP2)

    def bodies(self):
        with self._proxy(bodies="large") as proxy:
            self.bench.load.get(proxy.port, LONG_BODY)
            self.bench.load.post(proxy.port, LONG_BODY)
            upload = self.bench.workspace.path / "upload"
            upload.write_bytes(bytes(BODY))
            self._requests(proxy, *HTTP1, path=f"/{BODY}", requests=BODIES)
            self._requests(proxy, *HTTP1, f"-d{upload}", requests=BODIES)

    def tunnel(self):
        """Messages of a WebSocket, there and back, one after the other."""
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with self._proxy(upstream=server.server_address[1]) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
                for sent, end in [(UPGRADE, b"\r\n\r\n"), *[(MESSAGE, MESSAGE)] * MESSAGES]:
                    client.sendall(sent)
                    if not read_until(client, end):
                        raise Failed("the proxy has closed the WebSocket")

    def decisions(self):
        peer = Peer("tidegate", self.program, tidegate)
        for redis in (None, RedisServer(self.bench, core="all")):
            with self._ended(calls.tidegate(self.bench, peer, redis)) as service:
                call = calls.one_call(self.bench)
                self._requests(service, "-c1", "-m100", *call, path=calls.METHOD)

    def replay(self):
        directory = self.bench.workspace.directory("replay")
        setup = Setup(upstream=self.upstream)
        _, _, _, plan = tidegate.prepare(self.program, directory, setup, free_port())
        with gzip.open(ROOT / "tests/data/apache-access.log.gz") as log:
            (directory / "log").write_bytes(log.read())
        self.bench.run([self.program, "replay", "--config", plan, directory / "log"], "all", 60)

    @contextmanager
    def _proxy(self, upstream=None, **setup):
        """A proxy that has ended by itself when the work is done."""
        setup = Setup(upstream=upstream or self.upstream, **setup)
        proxy = Peer("tidegate", self.program, tidegate).start(self.bench.workspace, setup)
        with self._ended(proxy):
            yield proxy

    @contextmanager
    def _ended(self, proxy):
        """What it is, until the work is done. Then it must end by itself."""
        yield proxy
        proxy.stop(PATIENCE)
        if proxy.process.returncode != 0:
            raise Failed(f"tidegate ended with {proxy.process.returncode}: {proxy.last_words()}")

    def _requests(self, proxy, *options, status=200, scheme="http", path="/1024", requests=REQUESTS):
        """Requests by h2load."""
        url = f"{scheme}://127.0.0.1:{proxy.port}{path}"
        said = self.bench.run(["h2load", "-t1", f"-n{requests}", *options, url], "all", 120)
        answered = int(re.search(rf"(\d+) {status // 100}xx", said)[1])
        # Of those that are to be rejected one passes.
        if answered < requests - (status == 429):
            raise Failed(f"{requests} answers were to be {status}: {said}")


class Echo(socketserver.BaseRequestHandler):
    """An API whose tunnels say what they hear."""

    def handle(self):
        # A connection may stay without a request.
        if not read_until(self.request, b"\r\n\r\n"):
            return
        self.request.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        while heard := self.request.recv(4096):
            self.request.sendall(heard)


def read_until(stream, end):
    """Whether these bytes came, as the last for now; otherwise the connection has ended."""
    got = b""
    while not got.endswith(end):
        piece = stream.recv(4096)
        if not piece:
            return False
        got += piece
    return True


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except (Failed, OSError) as failed:
        sys.exit(f"training: {failed}")
