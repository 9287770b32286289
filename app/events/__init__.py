"""Events: numbered facts of jobs, their ingest, and the streams that replay and follow them."""
