"""The REST service: routes → services → stores → Postgres."""
