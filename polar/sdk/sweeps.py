"""Presets, and sweeps: one spec with some fields varied, and comparisons of jobs."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from polar.sdk import answers
from polar.sdk.calls import Call, nothing, part
from polar.sdk.operations import D, Resource, operation, pages
from polar.sdk.reading import as_


class Presets(Resource[D]):
    """`/presets`: parts of specs that jobs name."""

    @operation
    def page(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> Call[answers.PresetList]:
        """Return a page of the project's presets, by name."""
        query = {"limit": limit, "cursor": cursor}
        return Call(method="GET", path="/presets", query=query, read=as_(answers.PresetList))

    list = pages(page.describe)

    @operation
    def get(self, name: str) -> Call[answers.PresetOut]:
        """Return a preset."""
        return Call(method="GET", path=f"/presets/{part(name)}", read=as_(answers.PresetOut))

    @operation
    def put(self, name: str, body: Mapping[str, Any]) -> Call[answers.PresetOut]:
        """Keep a preset, new or in place of the one that is there."""
        path, read = f"/presets/{part(name)}", as_(answers.PresetOut)
        return Call(method="PUT", path=path, json=dict(body), read=read)

    @operation
    def delete(self, name: str) -> Call[None]:
        """Delete a preset."""
        return Call(method="DELETE", path=f"/presets/{part(name)}", read=nothing)


class Sweeps(Resource[D]):
    """`/sweeps` and `/compare`."""

    @operation
    def create(
        self, sweep: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> Call[answers.SweepOut]:
        """Submit a sweep; each call has an Idempotency-Key, as a job's submit."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        return Call(
            method="POST",
            path="/sweeps",
            json=dict(sweep),
            headers=headers,
            again=True,
            read=as_(answers.SweepOut),
        )

    @operation
    def page(
        self, *, status: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Call[answers.SweepPage]:
        """Return a page of sweeps, newest first."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        return Call(method="GET", path="/sweeps", query=query, read=as_(answers.SweepPage))

    list = pages(page.describe)

    @operation
    def get(self, sweep_id: str) -> Call[answers.SweepOut]:
        """Return a sweep with its jobs and, if there is one yet, the best of them."""
        return Call(method="GET", path=f"/sweeps/{part(sweep_id)}", read=as_(answers.SweepOut))

    @operation
    def cancel(self, sweep_id: str) -> Call[answers.SweepOut]:
        """Ask for the cancellation of all its jobs."""
        path, read = f"/sweeps/{part(sweep_id)}/cancel", as_(answers.SweepOut)
        return Call(method="POST", path=path, again=True, read=read)

    @operation
    def comparison(
        self,
        sweep_id: str,
        *,
        names: str | None = None,
        max_points: int | None = None,
        cursor: str | None = None,
    ) -> Call[answers.Comparison]:
        """Compare the jobs of a sweep: a page of them."""
        query = {"names": names, "max_points": max_points, "cursor": cursor}
        path, read = f"/sweeps/{part(sweep_id)}/comparison", as_(answers.Comparison)
        return Call(method="GET", path=path, query=query, read=read)

    @operation
    def compare(
        self,
        jobs: Sequence[str],
        *,
        names: str | None = None,
        max_points: int | None = None,
        cursor: str | None = None,
    ) -> Call[answers.Comparison]:
        """Compare any jobs: a page of them."""
        query = {"jobs": ",".join(jobs), "names": names, "max_points": max_points}
        query["cursor"] = cursor
        return Call(method="GET", path="/compare", query=query, read=as_(answers.Comparison))
