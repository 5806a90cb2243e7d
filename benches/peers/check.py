"""Whether the peers do the same: to compare proxies that answer differently is worth nothing."""

import http.client
import json
import re
import socket
import ssl

from measure import BODY
from process import Failed
from words import REJECTED, REJECTED_HEADERS, REJECTED_TYPE


class Session:
    """One connection to a proxy, which must be kept. With a certificate it is of TLS 1.3."""

    def __init__(self, proxy, certificate=None):
        self.proxy = proxy
        address = ("127.0.0.1", proxy.port)
        if certificate is None:
            self.connection = http.client.HTTPConnection(*address, timeout=10)
        else:
            context = trusts(certificate)
            self.connection = http.client.HTTPSConnection(*address, timeout=10, context=context)
        self.connection.connect()
        self.socket = self.connection.sock

    def ask(self, path="/", headers=None):
        self.connection.request("GET", path, headers=headers or {})
        answer = self.connection.getresponse()
        body = answer.read().decode()
        if self.connection.sock is not self.socket:
            raise Failed(f"{self.proxy.name} closes the client's connection")
        return answer, body

    def close(self):
        self.connection.close()

    def expect(self, status, path="/", body=None):
        answer, got = self.ask(path)
        if answer.status != status:
            words = f"{answer.status} in place of {status}: {got[:200]}"
            raise Failed(f"{self.proxy.name} answers {words}")
        if body is not None and got != body:
            raise Failed(f"{self.proxy.name} has another body: {got[:200]}")
        return answer, got


def trusts(certificate):
    """TLS 1.3 with a server that has this certificate."""
    context = ssl.create_default_context(cafile=certificate.cert)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def forwards(proxy, path="/", certificate=None):
    """It passes requests on, changes nothing, and keeps its connections on both sides."""
    session = Session(proxy, certificate)
    for _ in range(3):
        session.expect(200, path, BODY)
    session.close()


def keeps_upstream(proxy, certificate=None):
    """The connection to the upstream is kept."""
    session = Session(proxy, certificate)
    used = {session.expect(200, "/connection")[1] for _ in range(3)}
    session.close()
    if len(used) != 1:
        raise Failed(f"{proxy.name} makes a connection to the upstream for each request")


class Http2:
    """The same over HTTP/2."""

    def __init__(self, bench, upstream, scheme="http"):
        self.bench = bench
        self.upstream = upstream
        self.scheme = scheme

    def forwards(self, proxy):
        """By nghttp, which has one connection and asks for all at once on it."""
        urls = [self._url(proxy, f"/?{number}") for number in range(3)]
        said = self.bench.run(["nghttp", "--stat", "--timeout", 10, *urls], "load", 30)
        bodies, _, statistics = said.partition("***** Statistics *****")
        # id, three times, the status, the size, the path
        statuses = re.findall(r"^ *\d+ +\S+ +\S+ +\S+ +(\d+) +\S+ +/", statistics, re.MULTILINE)
        if statuses != ["200"] * 3:
            words = f"{', '.join(statuses) or 'nothing'} in place of 200 three times"
            raise Failed(f"{proxy.name} answers {words} on one connection of HTTP/2")
        if bodies.strip() != BODY * 3:
            raise Failed(f"{proxy.name} has another body: {bodies[:200]}")

    def keeps_upstream(self, proxy):
        """The upstream numbers its connections, so two of our own tell how many came between."""
        before = self._number()
        command = ["h2load", "-t1", "-c1", "-m1", "-n100", self._url(proxy, "/")]
        self.bench.run(command, "load", 30)
        made = self._number() - before - 1
        if made > 10:
            raise Failed(f"{proxy.name} makes {made} connections to the upstream for 100 requests")

    def _number(self):
        session = Session(self.upstream)
        number = int(session.expect(200, "/connection")[1])
        session.close()
        return number

    def _url(self, proxy, path):
        return f"{self.scheme}://127.0.0.1:{proxy.port}{path}"


def answers_once(proxy, certificate):
    """It answers the request that `openssl s_time` sends, which is of HTTP/1.0 and has no host,
    and ends the connection at once."""
    with socket.create_connection(("127.0.0.1", proxy.port), 1) as plain:
        with trusts(certificate).wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with client.makefile("rb") as answer:
                try:
                    said = answer.read()
                except TimeoutError as late:
                    raise Failed(f"{proxy.name} does not end a connection of HTTP/1.0") from late
    line = said.split(b"\r\n")[0].decode(errors="replace")
    if line.split()[1:2] != ["200"]:
        raise Failed(f"{proxy.name} answers HTTP/1.0 with {line}")


def rejects(proxy):
    """All but the first request have the same 429."""
    session = Session(proxy)
    session.ask()
    for _ in range(2):
        answer, body = session.expect(429)
    session.close()
    if json.loads(body) != json.loads(REJECTED) or answer.headers["content-type"] != REJECTED_TYPE:
        raise Failed(f"{proxy.name} rejects with {answer.headers['content-type']}: {body}")
    for name in REJECTED_HEADERS:
        if name not in answer.headers:
            raise Failed(f"{proxy.name} rejects without {name}")
