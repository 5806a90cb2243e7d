"""What all peers' configurations say alike."""

import json

# The answer to a throttled client: tidegate's own words, which the others are told to say too.
REJECTED = json.dumps(
    {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["per-client"],
    },
    separators=(",", ":"),
)
REJECTED_TYPE = "application/problem+json"
REJECTED_HEADERS = {
    "retry-after": "3600",
    "ratelimit-policy": '"per-client";q=1;w=3600',
    "ratelimit": '"per-client";r=0;t=3600',
}

# What a proxy says that answers by itself.
OWN_ANSWER = "ok"
