"""Whether the peers do the same: to compare proxies that answer differently is worth nothing."""

import http.client
import json

from measure import BODY
from process import Failed
from words import REJECTED, REJECTED_HEADERS, REJECTED_TYPE


class Session:
    """One connection to a proxy, which must be kept."""

    def __init__(self, proxy):
        self.proxy = proxy
        self.connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
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


def forwards(proxy, path="/"):
    """It passes requests on, changes nothing, and keeps its connections on both sides."""
    session = Session(proxy)
    for _ in range(3):
        session.expect(200, path, BODY)
    session.close()


def keeps_upstream(proxy):
    """The connection to the upstream is kept."""
    session = Session(proxy)
    used = {session.expect(200, "/connection")[1] for _ in range(3)}
    session.close()
    if len(used) != 1:
        raise Failed(f"{proxy.name} makes a connection to the upstream for each request")


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
