"""The measurement of scripts/hostile: see there."""

import json
import os
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "benches", "peers"))

ROUNDS, SECONDS, RATE, CONNECTIONS = 5, 3, 500, 8
SETTLING = 2
# The most microseconds that others may wait beside a crowd, as a median.
MOST = 20_000
HEAD = b"GET /limited HTTP/1.1\r\nhost: a\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
# GET / of the host `a` (RFC 7541, appendix A), as one HEADERS frame with END_STREAM and END_HEADERS.
ASKING = b"\x82\x86\x84\x41\x01a"


def h2_resets(first, count):
    """Requests that are reset at once, each a stream of its own."""
    pair = lambda n: (
        len(ASKING).to_bytes(3, "big") + b"\1\5" + n.to_bytes(4, "big") + ASKING
        + b"\0\0\4\3\0" + n.to_bytes(4, "big") + b"\0\0\0\x08"
    )
    return b"".join(pair(first + 2 * n) for n in range(count))


def frame(kind, flags=0, payload=b"", stream=0):
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


# The head of an upload in chunks.
CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
# The head of a request that offers to speak by WebSocket (RFC 6455, 4.1).
UPGRADE = (
    b"GET /socket HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGlkZWdhdGUgdGlkZWdhdA==\r\n\r\n"
)
ACCEPTING = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
FIELDS = b"".join(b"x-%d: y\r\n" % n for n in range(90))

# What a crowd does: how many connections, what each sends first, what it sends again (a piece each second, or
# as fast as it is taken), and whether it reads. Who is half-closed sends no more after the first, and says so by FIN.
CROWDS = {
    "slow heads": (1000, HEAD + b"x-slow: ", b"x", "each second", True),
    "slow bodies": (500, b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n", b"x", "each second", True),
    "slow readers": (200, b"GET /2000000 HTTP/1.1\r\nhost: a\r\n\r\n", b"", "never", False),
    "idle connections": (3000, HEAD + b"\r\n", b"", "never", True),
    "silent WebSockets": (500, UPGRADE, b"", "never", True),
    "half-closed connections": (20, HEAD + b"\r\n", b"", "half-closed", True),
    "pipelined floods": (20, b"", (HEAD + b"\r\n") * 200, "always", True),
    "pipelined floods, unread": (20, b"", (HEAD + b"\r\n") * 200, "always", False),
    "HTTP/2 resets": (20, PREFACE + h2_resets(1, 20000), b"", "reopen", True),
    "huge heads": (20, b"", HEAD + b"x: " + b"y" * 30000 + b"\r\n\r\n", "always", True),
    "many fields": (20, b"", HEAD + FIELDS + b"\r\n", "always", True),
    "chunk extensions": (20, CHUNKED + b"5;", b"x" * 60000, "always", True),
    "spaces behind a chunk's size": (20, CHUNKED + b"5", b" " * 60000, "always", True),
    "zeros before a chunk's size": (20, CHUNKED, b"0" * 60000, "always", True),
    "chunks of one byte": (20, CHUNKED, b"1\r\nx\r\n" * 10000, "always", True),
    "HTTP/2 PING": (20, PREFACE, frame(6, 0, b"pingpong") * 2000, "always", True),
    "HTTP/2 PRIORITY": (20, PREFACE, frame(2, 0, b"\0\0\0\0\1", 3) * 2000, "always", True),
    "HTTP/2 WINDOW_UPDATE": (20, PREFACE, frame(8, 0, b"\0\0\0\1") * 2000, "always", True),
    "HTTP/2 unknown frames": (20, PREFACE, frame(66) * 2000, "always", True),
    # By h2load: 100 requests at once on each connection.
    "HTTP/2 requests": (20, None, None, "by h2load", True),
    "one request after another (not hostile)": (20, HEAD + b"\r\n", HEAD + b"\r\n", "answered", True),
}


class Member:
    """One connection of a crowd."""

    def __init__(self, address, first, reads):
        self.socket = socket.socket()
        self.socket.settimeout(10)
        if not reads:
            # Otherwise the kernel takes a whole answer, and the reader is not slow but greedy.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(address)
        self.socket.setblocking(False)
        self.unsent = first

    def send(self, then_closes):
        try:
            sent = self.socket.send(self.unsent)
            self.unsent = self.unsent[sent:]
            if then_closes and not self.unsent:
                self.socket.shutdown(socket.SHUT_WR)
            return sent
        except BlockingIOError:
            return 0

    def receive(self):
        """How many bytes came; None at the end of the connection."""
        try:
            return len(self.socket.recv(1 << 18)) or None
        except BlockingIOError:
            return 0


def crowd(name, port):
    """Plays a crowd until the process is ended. Says what became of it."""
    many, first, again, when, reads = CROWDS[name]
    counts = {"opened": 0, "closed by tidegate": 0, "bytes sent": 0, "bytes received": 0}
    signal.signal(signal.SIGTERM, lambda *_: (print(json.dumps(counts), flush=True), os._exit(0)))
    ready, members = selectors.DefaultSelector(), set()

    def watch(member):
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if member.unsent else 0)
        key = ready.get_map().get(member.socket)
        if key is not None and key.events != events:
            ready.unregister(member.socket)
        if events and (key is None or key.events != events):
            ready.register(member.socket, events, member)

    def close(member):
        if member.socket in ready.get_map():
            ready.unregister(member.socket)
        members.discard(member)
        member.socket.close()
        counts["closed by tidegate"] += 1

    told, last = False, time.monotonic()
    while True:
        while len(members) < many:
            member = Member(("127.0.0.1", port), first, reads)
            members.add(member)
            counts["opened"] += 1
            if when == "always":
                member.unsent += again
            watch(member)
        if not told:
            print("ready", flush=True)
            told = True
        if when == "each second" and time.monotonic() - last >= 1:
            last = time.monotonic()
            for member in members:
                member.unsent += again
                watch(member)
        for key, events in ready.select(0.2) or [(None, 0)]:
            if key is None:
                continue
            member = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    counts["bytes sent"] += member.send(when == "half-closed")
                    if when == "always" and len(member.unsent) < len(again):
                        member.unsent += again
                if events & selectors.EVENT_READ:
                    came = member.receive()
                    if came is None:
                        close(member)
                        continue
                    counts["bytes received"] += came
                    if when == "answered" and came:
                        member.unsent += again
                watch(member)
            except OSError:
                close(member)


CONFIGURATION = """
[server]
listen = "127.0.0.1:{port}"
workers = 1
[upstreams.api]
servers = ["http://127.0.0.1:{api}"]
[limits.few]
rate = "1/h"
key = ["ip"]
[upstreams.sockets]
servers = ["http://127.0.0.1:{sockets}"]
[[routes]]
path = "/limited"
upstream = "api"
limits = ["few"]
[[routes]]
path = "/socket"
upstream = "sockets"
[[routes]]
path = "/{{*rest}}"
upstream = "api"
"""


def sockets(listener):
    """An API that accepts each WebSocket and then says nothing. It ends with its process."""
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                ready.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            try:
                came = key.fileobj.recv(1 << 16)
                if b"upgrade:" in came:
                    key.fileobj.sendall(ACCEPTING)
            except OSError:
                came = b""
            if not came:
                ready.unregister(key.fileobj)
                key.fileobj.close()


def playing(name, port):
    """Starts a crowd. Its own work must not keep the client waiting."""
    many, _, _, when, _ = CROWDS[name]
    if when == "by h2load":
        stay = str(SETTLING + SECONDS + 1)
        command = ["h2load", "-c", str(many), "-m", "100", "-D", stay, f"http://127.0.0.1:{port}/limited"]
    else:
        command = [sys.executable, __file__, "--crowd", name, str(port)]
    started = subprocess.Popen(["nice", "-n", "19", *command], stdout=subprocess.PIPE, text=True)
    if when != "by h2load":
        started.stdout.readline()
    return started


def became(name, started):
    """What became of a crowd, which is ended if it does not end by itself."""
    if CROWDS[name][3] == "by h2load":
        lines = started.communicate()[0].splitlines()
        return next((line for line in lines if line.startswith("finished")), "h2load failed")
    started.terminate()
    counts = json.loads(started.communicate()[0])
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    import install

    program, load = map(str, install.build())
    names = sys.argv[1:] or list(CROWDS)
    for name in names:
        if name not in CROWDS:
            sys.exit(f"there is no crowd {name}: {', '.join(CROWDS)}")
    # The proxy has a core for itself. What is measured is its work, and not that of the crowds' own process.
    cores = sorted(os.sched_getaffinity(0))
    own = {cores[0]}
    os.sched_setaffinity(0, set(cores) - own or own)
    port, api = free_port(), free_port()
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    threading.Thread(target=sockets, args=(listener,), daemon=True).start()
    folder = tempfile.mkdtemp(prefix="hostile-")
    file = os.path.join(folder, "proxy.toml")
    with open(file, "w", encoding="utf-8") as text:
        text.write(CONFIGURATION.format(port=port, api=api, sockets=listener.getsockname()[1]))
    log = open(os.path.join(folder, "log"), "wb")
    pin = lambda: os.sched_setaffinity(0, own)
    upstream = subprocess.Popen([load, "serve", f"127.0.0.1:{api}"], stdout=subprocess.DEVNULL)
    proxy = subprocess.Popen([program, "run", "--config", file], stdout=log, stderr=log, preexec_fn=pin)
    time.sleep(1)

    def client():
        command = [load, "rate", f"127.0.0.1:{port}", str(RATE), str(CONNECTIONS), str(SECONDS)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    print(f"| beside | p50 alone | beside | ratio | p99 alone | beside | ratio | the crowd, in {SECONDS} s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |", flush=True)
    late = []
    try:
        for name in names:
            rounds, said = [], ""
            for _ in range(ROUNDS):
                before = client()
                crowd_process = playing(name, port)
                # What is measured is the crowd's stay, and not its arrival.
                time.sleep(SETTLING)
                beside = client()
                said = became(name, crowd_process)
                time.sleep(0.5)
                after = client()
                rounds.append((before, beside, after))
            figures = []
            for quantile in ("p50", "p99"):
                alone = [(before[quantile] + after[quantile]) / 2 for before, _, after in rounds]
                hurt = [beside[quantile] for _, beside, _ in rounds]
                ratio = statistics.median(with_it / without for with_it, without in zip(hurt, alone))
                if quantile == "p50" and statistics.median(hurt) > MOST:
                    late.append(name)
                figures += [f"{statistics.median(alone):.0f} µs", f"{statistics.median(hurt):.0f} µs", f"{ratio:.1f}"]
            print(f"| {CROWDS[name][0]} × {name} | {' | '.join(figures)} | {said} |", flush=True)
        if proxy.poll() is not None:
            sys.exit(f"tidegate has ended: see {folder}/log")
    finally:
        for process in (proxy, upstream):
            process.kill()
    print(f"\nThe log: {folder}/log", file=sys.stderr)
    if late:
        sys.exit(f"the p50 was more than {MOST} µs beside: {', '.join(late)}")


if sys.argv[1:2] == ["--crowd"]:
    crowd(sys.argv[2], int(sys.argv[3]))
else:
    main()
