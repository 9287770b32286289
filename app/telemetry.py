"""Prometheus metrics that the API process counts by itself."""

from prometheus_client import CollectorRegistry, Histogram

REGISTRY = CollectorRegistry()
LATENCY = Histogram(
    "polar_http_request_seconds",
    "Time to the end of the answer; streams count until they are closed.",
    ("method", "route", "status"),
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
)
