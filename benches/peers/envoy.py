"""Envoy: its local rate limit, with a bucket for each key."""

import json
import re
import subprocess

from words import OWN_ANSWER, REJECTED, REJECTED_HEADERS, REJECTED_TYPE

FILTERS = "type.googleapis.com/envoy.extensions.filters"
PROTOCOLS = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
MANY = 1_000_000


def version(binary):
    said = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"/(\d+\.\d+\.\d+)/", said)
    return f"envoy {found.group(1) if found else said.strip()}"


def prepare(binary, directory, setup, port):
    path = directory / "envoy.json"
    clusters = [] if setup.upstream is None else [_cluster(setup.upstream)]
    path.write_text(json.dumps({
        "static_resources": {"listeners": [_listener(setup, port)], "clusters": clusters},
        # Otherwise it warns of having no limit of its own.
        "overload_manager": {"resource_monitors": [{
            "name": "envoy.resource_monitors.global_downstream_max_connections",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.resource_monitors"
                         ".downstream_connections.v3.DownstreamConnectionsConfig",
                "max_active_downstream_connections": 20000,
            },
        }]},
    }))
    return [binary, "--config-path", path, "--concurrency", setup.workers, "--disable-hot-restart",
            "--log-level", "warning"]


def _listener(setup, port):
    if setup.upstream is None:
        to = {"direct_response": {"status": 200, "body": {"inline_string": OWN_ANSWER}}}
    else:
        to = {"route": {"cluster": "api", "timeout": "30s"}}
    manager = {
        "@type": f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "use_remote_address": True,
        "generate_request_id": False,
        "codec_type": _codec(setup),
        "stream_idle_timeout": "60s",
        "common_http_protocol_options": {"idle_timeout": "75s"},
        "route_config": {"virtual_hosts": [
            {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, **to}]},
        ]},
        "local_reply_config": _rejection(),
        "http_filters": [
            {"name": "limit", "typed_config": _limit(setup)},
            {"name": "router", "typed_config": {
                "@type": f"{FILTERS}.http.router.v3.Router",
                "suppress_envoy_headers": True,
            }},
        ],
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    if setup.tls is not None:
        chain["transport_socket"] = {"name": "tls", "typed_config": _tls(setup.tls)}
        # Clients that make a connection for each request speak HTTP/1.0 and wait for its end.
        manager["http_protocol_options"] = {
            "accept_http_10": True, "default_host_for_http_10": "bench",
        }
        manager["delayed_close_timeout"] = "0s"
    return {"address": _address(port), "tcp_backlog_size": 4096, "filter_chains": [chain]}


def _codec(setup):
    if setup.tls is not None:
        return "AUTO"
    return "HTTP2" if setup.protocol == "h2" else "HTTP1"


def _tls(certificate):
    return {
        "@type": f"{TLS}.DownstreamTlsContext",
        "common_tls_context": {
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificates": [{
                "certificate_chain": {"filename": str(certificate.cert)},
                "private_key": {"filename": str(certificate.key)},
            }],
        },
    }


def _limit(setup):
    if setup.key == "ip":
        name, action = "remote_address", {"remote_address": {}}
    else:
        name = "key"
        action = {"request_headers": {"header_name": "x-api-key", "descriptor_key": name}}
    bucket = {
        "open": {"max_tokens": MANY, "tokens_per_fill": MANY, "fill_interval": "1s"},
        "closed": {"max_tokens": 1, "tokens_per_fill": 1, "fill_interval": "3600s"},
    }[setup.rate]
    always = {"default_value": {"numerator": 100}}
    return {
        "@type": f"{FILTERS}.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "limit",
        "filter_enabled": always,
        "filter_enforced": always,
        # What has no key; each key has the bucket below, made when it first comes.
        "token_bucket": {"max_tokens": MANY, "tokens_per_fill": MANY, "fill_interval": "1s"},
        "rate_limits": [{"actions": [action]}],
        "descriptors": [{"entries": [{"key": name}], "token_bucket": bucket}],
        "max_dynamic_descriptors": 1_100_000 if setup.key == "header" else 10_000,
        "always_consume_default_token_bucket": False,
        "response_headers_to_add": [
            {"header": {"key": key, "value": value}} for key, value in REJECTED_HEADERS.items()
        ],
    }


def _rejection():
    return {"mappers": [{
        "filter": {"status_code_filter": {"comparison": {
            "op": "EQ", "value": {"default_value": 429, "runtime_key": "none"},
        }}},
        "body_format_override": {
            "text_format_source": {"inline_string": REJECTED},
            "content_type": REJECTED_TYPE,
        },
    }]}


def _cluster(port):
    return {
        "name": "api",
        "type": "STATIC",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": {PROTOCOLS.rsplit("/", 1)[1]: {
            "@type": PROTOCOLS,
            "common_http_protocol_options": {"idle_timeout": "60s"},
            "explicit_http_config": {"http_protocol_options": {}},
        }},
        "circuit_breakers": {"thresholds": [{
            "max_connections": MANY, "max_pending_requests": MANY, "max_requests": MANY,
        }]},
        "load_assignment": {"cluster_name": "api", "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": _address(port)}}]},
        ]},
    }


def _address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
