"""The scenarios by their names, in the order in which they run.

Each is a function of a `Bench` that answers Markdown.
"""

from . import body, decide, jwt, memory, redis, saturated, scale, shared, steady, tls

ALL = {
    "forward": saturated.forward,
    "reject": saturated.reject,
    "header": saturated.header,
    "jwt": jwt.jwt,
    "decide": decide.decide,
    "http2": saturated.http2,
    "tls": tls.tls,
    "memory": memory.keys,
    "idle": memory.idle,
    "redis": redis.redis,
    "shared": shared.plain,
    "shared-header": shared.header,
    "shared-reject": shared.reject,
    "shared-cluster": shared.cluster,
    "latency": steady.latency,
    "body": body.body,
    "routes": scale.routes,
    "workers": scale.workers,
}
