"""tidegate alone: what it costs to count by a claim of a verified token."""

from statistics import median

import check
import report
import tokens
from load import Saturate, tokens_script
from peers import Setup

from .saturated import cpu, verify

# As many as each worker remembers for certain.
WARM = 2_000
# More than a worker remembers. They come in turn, so none is remembered when it comes again.
COLD = 12_000


def jwt(bench):
    """1 KiB answers. The same requests are limited by a header, and by a claim of their token, which
    was verified before. Then tokens that were not, so that each request costs a signature."""
    upstream = bench.upstream()
    warm, cold, rsa = (
        tokens.make(bench, algorithm, count)
        for algorithm, count in (("ES256", WARM), ("ES256", COLD), ("RS256", COLD))
    )
    variants = {
        "header": ("header", warm),
        "claim, verified before": ("claim", warm),
        "claim, ES256 verified": ("claim", cold),
        "claim, RS256 verified": ("claim", rsa),
    }
    loads = {
        title: Saturate(bench.seconds, script=tokens_script(made.lines))
        for title, (_, made) in variants.items()
    }
    parts = []
    for peer in bench.peers:
        if not peer.name.startswith("tidegate"):
            continue  # the others know no tokens, or not without another module
        proxies = {}
        for title, (key, made) in variants.items():
            setup = Setup(upstream.port, key=key, jwt=made.key)
            proxies[title] = peer.start(bench.workspace, setup)
            proxies[title].title = title
        verify(bench, proxies, check.forwards, check.keeps_upstream)
        loads["claim, verified before"].run(bench, proxies["claim, verified before"])
        samples = bench.in_turn(
            proxies, lambda proxy: loads[proxy.title].run(bench, proxy), cpu
        )
        bench.workspace.stop(*proxies.values())
        parts.append(f"{peer.name}:\n\n{_table(samples)}")
    bench.workspace.stop(upstream)
    return "\n".join(parts)


def _table(samples):
    base = [sample.cpu for sample in samples["header"]]
    rows = []
    for title, got in samples.items():
        used = [sample.cpu for sample in got]
        more = [own - other for own, other in zip(used, base)]
        rows.append([
            title,
            "1" if title == "header" else report.spread(report.ratios(used, base)),
            "" if title == "header" else report.spread(more, "{:.1f}"),
            f"{median(used):.1f}",
            f"{median(sample.rate for sample in got):.0f}",
        ])
    header = ["key", "CPU for each request, to header = 1", "more, µs", "median, µs", "requests/s"]
    return report.table(header, rows)
