"""Prometheus metrics that the API process counts by itself."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
LATENCY = Histogram(
    "polar_http_request_seconds",
    "Time to the end of the answer; streams count until they are closed.",
    ("method", "route", "status"),
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
)
STREAMS = Gauge("polar_streams", "Open event streams.", registry=REGISTRY)
STREAM_DROPS = Counter(
    "polar_stream_frames_dropped",
    "Frames that did not fit into the queue of a slow client; it reads them from Postgres.",
    registry=REGISTRY,
)
STREAM_RESYNCS = Counter(
    "polar_stream_resyncs", "Times that a stream went back to Postgres.", registry=REGISTRY
)
NUDGES_CONNECTED = Gauge(
    "polar_nudges_connected", "1 while the broker nudges this process.", registry=REGISTRY
)
