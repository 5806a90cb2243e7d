"""One run of the harness: its options, its machine, and taking measurements in turn."""

import os
import subprocess
import sys

from load import Load
from nginx import prepare_upstream
from process import Failed, free_port

BODY = "0123456789abcdef" * 64


class Bench:
    """What scenarios work with."""

    def __init__(self, workspace, peers, options, load_binary):
        self.workspace = workspace
        self.peers = peers
        self.options = options
        self.load = Load(self, load_binary)

    @property
    def rounds(self):
        return self.options.rounds

    @property
    def seconds(self):
        return self.options.seconds

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def run(self, command, core, timeout):
        """What a command says that ends by itself."""
        cores = self.workspace.cores[core]
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            timeout=timeout,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        if done.returncode != 0:
            raise Failed(f"{command[0]}: {done.stderr.strip()[-500:] or done.returncode}")
        return done.stdout

    def upstream(self, core="load", body=BODY):
        """The API behind the proxies: an nginx of one worker that answers 1 KiB from memory."""
        directory, port = self.workspace.directory("upstream"), free_port()
        command = prepare_upstream(self.options.nginx, directory, port, body)
        child = self.workspace.start("upstream", command, directory, core, port)
        child.port = port
        return child

    def start(self, setup, core="proxy", peers=None):
        """Every peer, ready; one that cannot be what is wanted is left out, and it is said why."""
        proxies = {}
        for peer in peers or self.peers:
            try:
                proxies[peer.name] = peer.start(self.workspace, setup, core)
            except Failed as failed:
                self.say(f"  {peer.name} is left out: {failed}")
        return proxies

    def in_turn(self, proxies, measure, rounds=None):
        """A B C A B C …: for each name the values of all rounds, in their order."""
        values = {name: [] for name in proxies}
        for turn in range(rounds or self.rounds):
            for name, proxy in proxies.items():
                values[name].append(measure(proxy))
            latest = ", ".join(f"{name} {_short(got[-1])}" for name, got in values.items())
            self.say(f"  round {turn + 1}: {latest}")
        return values


def _short(value):
    return f"{getattr(value, 'cpu', value):.4g}" if not isinstance(value, dict) else str(value)
