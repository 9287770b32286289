"""MLflow's REST interface, as much of it as the mirror needs; no MLflow package is imported.

MlflowError
├── MlflowUnavailable   no answer, or a server error: the same call may succeed later
└── MlflowRefused       MLflow answered that it will not; `code` is its own error code
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import httpx

RunStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
Json = dict[str, Any]
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100


class MlflowError(Exception):
    """Something about MLflow went wrong; no job depends on it."""


class MlflowUnavailable(MlflowError):
    """No answer, or a server error; trying again later is right."""


class MlflowRefused(MlflowError):
    """MLflow answered that it will not; `code` is its own error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Mlflow:
    """A connection to one tracking server; every call may raise MlflowError.

    A call waits at most 3 s for a connection and 20 s for an answer.
    """

    def __init__(self, url: str) -> None:
        timeout = httpx.Timeout(20.0, connect=3.0)
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=timeout, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _call(self, method: str, path: str, **request: Any) -> Json:
        try:
            answer = self._http.request(method, f"/api/2.0/{path}", **request)
        except httpx.HTTPError as error:
            raise MlflowUnavailable(f"{type(error).__name__}: {error}") from error
        if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR or answer.status_code in (
            httpx.codes.TOO_MANY_REQUESTS,
            httpx.codes.REQUEST_TIMEOUT,
        ):
            raise MlflowUnavailable(f"{answer.status_code}: {answer.text[:200]}")
        body = _json(answer)
        if answer.is_error:
            raise MlflowRefused(
                str(body.get("error_code", answer.status_code)), str(body.get("message", ""))[:500]
            )
        return body

    def _post(self, path: str, body: Mapping[str, Any]) -> Json:
        return self._call("POST", f"mlflow/{path}", json=body)

    def _get(self, path: str, **parameters: str) -> Json:
        return self._call("GET", f"mlflow/{path}", params=parameters)

    # -- experiments and runs -------------------------------------------------------------------

    def experiment(self, name: str) -> str:
        """Return the id of the experiment, created where it is missing, restored where deleted."""
        try:
            found = self._get("experiments/get-by-name", experiment_name=name)["experiment"]
        except MlflowRefused as error:
            if error.code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return self._new_experiment(name)
        if found.get("lifecycle_stage") == "deleted":
            self._post("experiments/restore", {"experiment_id": found["experiment_id"]})
        return str(found["experiment_id"])

    def _new_experiment(self, name: str) -> str:
        try:
            return str(self._post("experiments/create", {"name": name})["experiment_id"])
        except MlflowRefused as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":  # another mirror was first
                raise
            found = self._get("experiments/get-by-name", experiment_name=name)["experiment"]
            return str(found["experiment_id"])

    def find_run(self, experiment_id: str, tag: str, value: str) -> str | None:
        """Return the id of a run that carries the tag."""
        body = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`{tag}` = '{value}'",
            "max_results": 1,
        }
        runs = self._post("runs/search", body).get("runs", [])
        return str(runs[0]["info"]["run_id"]) if runs else None

    def create_run(
        self, experiment_id: str, name: str, start_ms: int, tags: Mapping[str, str]
    ) -> str:
        """Create a RUNNING run and return its id."""
        body = {
            "experiment_id": experiment_id,
            "run_name": name,
            "start_time": start_ms,
            "tags": _pairs(tags),
        }
        return str(self._post("runs/create", body)["run"]["info"]["run_id"])

    def run_info(self, run_id: str) -> Json:
        """Return a run's info: `status`, `lifecycle_stage`, `artifact_uri`, …."""
        info: Json = self._get("runs/get", run_id=run_id)["run"]["info"]
        return info

    def log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Log parameters; MLflow refuses to change one that is there already."""
        pairs = _pairs(params)
        for start in range(0, len(pairs), PARAMS_PER_BATCH):
            self._batch(run_id, params=pairs[start : start + PARAMS_PER_BATCH])

    def log_metrics(self, run_id: str, metrics: Sequence[Json]) -> None:
        """Log `{key, value, timestamp (ms), step}` points; repeating one changes nothing."""
        for start in range(0, len(metrics), METRICS_PER_BATCH):
            self._batch(run_id, metrics=list(metrics[start : start + METRICS_PER_BATCH]))

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        self._batch(run_id, tags=_pairs(tags))

    def _batch(self, run_id: str, **content: list[Json]) -> None:
        self._post("runs/log-batch", {"run_id": run_id, **content})

    def end_run(self, run_id: str, status: RunStatus, end_ms: int) -> None:
        """Close the run with a status."""
        self._post("runs/update", {"run_id": run_id, "status": status, "end_time": end_ms})

    def put_artifact(self, artifact_uri: str, path: str, content: bytes) -> None:
        """Write a file below the run's `artifact_uri` through the server's artifact proxy.

        Raises MlflowRefused when the server does not proxy artifacts.
        """
        scheme, _, root = artifact_uri.partition(":")
        if scheme != "mlflow-artifacts":
            raise MlflowRefused("NO_ARTIFACT_PROXY", f"{artifact_uri} is not behind the server")
        target = quote(f"{root.lstrip('/')}/{path}")
        self._call("PUT", f"mlflow-artifacts/artifacts/{target}", content=content)

    # -- registry -------------------------------------------------------------------------------

    def model_version(self, name: str, source: str, run_id: str, tags: Mapping[str, str]) -> str:
        """Return the number of the model version made from this run, created where missing."""
        try:
            self._post("registered-models/create", {"name": name})
        except MlflowRefused as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":
                raise
        found = self._get("model-versions/search", filter=f"run_id = '{run_id}'")
        for version in found.get("model_versions", []):
            if version["name"] == name:
                return str(version["version"])
        body = {"name": name, "source": source, "run_id": run_id, "tags": _pairs(tags)}
        return str(self._post("model-versions/create", body)["model_version"]["version"])


def _pairs(values: Mapping[str, str]) -> list[Json]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _json(answer: httpx.Response) -> Json:
    try:
        body = answer.json()
    except ValueError:
        body = {"message": answer.text[:200]}
    return body if isinstance(body, dict) else {}
