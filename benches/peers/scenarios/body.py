"""One large body through the proxy, down and up."""

from dataclasses import dataclass

import report
from peers import Setup
from process import Failed, free_port

SIZE = 1 << 30
QUICK_SIZE = 128 << 20


@dataclass(frozen=True)
class Moved:
    """One body."""

    # MiB/s.
    speed: float
    # Microseconds of the proxy's CPU for each MiB.
    cpu: float


def body(bench):
    """MiB/s of one body, and what the proxy's memory grew by at its peak."""
    size = QUICK_SIZE if bench.options.quick else SIZE
    port = free_port()
    upstream = bench.load.serve(port)
    proxies = bench.start(Setup(upstream=port, bodies="large"))
    before = {name: proxy.memory("VmHWM") for name, proxy in proxies.items()}
    parts = []
    for title, move in (("down", bench.load.get), ("up", bench.load.post)):
        bench.say(f"  {title}")
        samples = bench.in_turn(
            proxies,
            lambda proxy: _moved(proxy, move, size),
            lambda moved: f"{moved.speed:.0f} MiB/s",
        )
        columns = [
            (f"MiB/s {title}", lambda sample: sample.speed, "{:.0f}"),
            ("CPU for each MiB", lambda sample: sample.cpu, "{:.0f} µs"),
        ]
        parts.append(report.compare(samples, columns))
    rows = [
        [name, f"{(proxy.memory('VmHWM') - before[name]) / (1 << 20):.1f}"]
        for name, proxy in proxies.items()
    ]
    bench.workspace.stop(upstream, *proxies.values())
    header = ["peer", f"MiB more at its peak, over all bodies of {size >> 20:,} MiB"]
    parts.append(report.table(header, rows))
    return "\n".join(parts)


def _moved(proxy, move, size):
    before = proxy.cpu()
    try:
        said = move(proxy.port, size)
    except Failed as failed:
        raise Failed(f"{proxy.name}: {failed}") from failed
    mib = size / (1 << 20)
    return Moved(mib / said["seconds"], (proxy.cpu() - before) / mib)
