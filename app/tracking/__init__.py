"""The MLflow mirror: runs, metrics and models of MLflow follow the service's own events."""
