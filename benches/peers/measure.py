"""One run of the harness: its options, its machine, and taking measurements in turn."""

import os
import subprocess
import sys
import threading

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
        # Who is missing in the scenario under way, and why.
        self.left_out = {}

    @property
    def rounds(self):
        return self.options.rounds

    @property
    def seconds(self):
        return self.options.seconds

    def say(self, text):
        print(text, file=sys.stderr, flush=True)

    def leave_out(self, name, why):
        self.say(f"  {name} is left out: {why}")
        self.left_out[name] = str(why)

    def run(self, command, core, timeout, env=None):
        """What a command says that ends by itself. `env` is added to the environment."""
        cores = self.workspace.cores[core]
        try:
            done = subprocess.run(
                list(map(str, command)),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                env={**os.environ, **(env or {})},
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{command[0]} was not through after {timeout} s") from late
        if done.returncode != 0:
            raise Failed(f"{command[0]}: {done.stderr.strip()[-500:] or done.returncode}")
        return done.stdout

    def follow(self, command, core, timeout, at):
        """The same, with each line handed to `at` when it comes."""
        cores = self.workspace.cores[core]
        child = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        late = threading.Timer(timeout, child.kill)
        late.start()
        try:
            said = []
            for line in child.stdout:
                at(line)
                said.append(line)
            child.wait()
        finally:
            late.cancel()
            child.kill()
        if child.returncode != 0:
            raise Failed(f"{command[0]}: {''.join(said)[-500:] or child.returncode}")
        return "".join(said)

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
                self.leave_out(peer.name, failed)
        return proxies

    def in_turn(self, proxies, measure, show):
        """A B C A B C …: for each name the samples of all rounds, in their order."""
        samples = {name: [] for name in proxies}
        for turn in range(self.rounds):
            for name, proxy in proxies.items():
                samples[name].append(measure(proxy))
            latest = ", ".join(f"{name} {show(got[-1])}" for name, got in samples.items())
            self.say(f"  round {turn + 1}: {latest}")
        return samples
