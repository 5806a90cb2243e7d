"""Processes that are started, pinned, counted and, whatever happens, ended."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PATIENCE = 20.0


class Failed(Exception):
    """Something that was started did not do what it is there for."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Child:
    """A running process and what the kernel knows of it and its descendants."""

    def __init__(self, name, command, cores, log, stdin=None, stdout=None):
        self.name = name
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=stdin or subprocess.DEVNULL,
                stdout=stdout or output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )

    def wait_for(self, port):
        """Until the port takes connections."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended: {self.last_words()}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise Failed(f"{self.name} does not listen on port {port}: {self.last_words()}")

    def last_words(self):
        return Path(self.log).read_text(errors="replace")[-2000:].strip() or "(no output)"

    def pids(self):
        """The process and its descendants."""
        found, todo = [], [self.process.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        return found

    def cpu(self):
        """User and system time so far, in microseconds: what the scheduler has counted, in
        nanoseconds and for each thread, so finer than the ticks of /proc/PID/stat."""
        total = 0
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                try:
                    total += int((task / "schedstat").read_text().split()[0])
                except (FileNotFoundError, ProcessLookupError):
                    pass  # a thread that ended meanwhile
        return total / 1000

    def memory(self, field="VmRSS"):
        """Resident memory (or its peak, `VmHWM`) in bytes. Where there are several processes,
        the pages that they share count in each."""
        total = 0
        for pid in self.pids():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(field + ":"):
                    total += int(line.split()[1]) * 1024
        return total

    def stop(self, patience=2):
        """Asks it to end, and ends it where it has not after so many seconds."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                pass
        # Its children have its session, and may outlive it.
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass


class Workspace:
    """A directory for configurations and logs, and everything that runs: gone at the end."""

    def __init__(self, cores):
        self.cores = cores
        self.path = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
        # Peers that are started by root may let their workers run as somebody else.
        self.path.chmod(0o755)
        self.children = []
        atexit.register(self.close)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))

    def directory(self, name):
        """A new directory whose name begins so."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.path))

    def start(self, name, command, directory, core, port=None, **streams):
        """Starts a command on "proxy" cores, "load" cores or "all", and waits for its port."""
        child = Child(name, list(map(str, command)), self.cores[core], directory / "log", **streams)
        self.children.append(child)
        if port is not None:
            child.wait_for(port)
        return child

    def stop(self, *children):
        for child in children:
            child.stop()
            self.children.remove(child)

    def stop_all(self):
        for child in reversed(self.children):
            child.stop()
        self.children.clear()

    def close(self):
        self.stop_all()
        shutil.rmtree(self.path, ignore_errors=True)
