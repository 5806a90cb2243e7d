"""What this machine is, and which of its cores do what."""

import os
import platform
from pathlib import Path


def cores():
    """The proxy alone on one core, load and upstream together on another. Both on one where there
    is no other: then the figures of requests a second say nothing, those of CPU still do."""
    there = sorted(os.sched_getaffinity(0))
    return {"proxy": {there[0]}, "load": {there[-1]}, "all": {there[0], there[-1]}}


def describe():
    """One line."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / (1 << 20)
    load = os.getloadavg()[0]
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, "
        f"Linux {platform.release()}, load {load:.1f} at the start"
    )


def disturbance(before, after):
    """The share of the time in which the hypervisor gave the cores to somebody else."""
    total = sum(after) - sum(before)
    return (after[7] - before[7]) / total if total and len(after) > 7 else 0.0


def ticks():
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
