"""The API's description: valid, complete, and true of the running service."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.main import create_app
from tests.app import resources
from tests.app.server import Api

schemathesis.serializer.alias("application/offset+octet-stream", "application/octet-stream")
DOCUMENT = create_app().openapi()
OPEN = {"/healthz", "/readyz"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def examples() -> Iterator[Any]:
    """Each example body of each operation; operations without a body once."""
    for method, path, operation in operations():
        contents = operation.get("requestBody", {}).get("content", {"": {}})
        for media_type, content in contents.items():
            named = content.get("examples", {"-": {}})
            for name, example in named.items():
                identity = f"{method} {path} {name}".removesuffix(" -")
                yield pytest.param(method, path, media_type, example.get("value"), id=identity)


def test_the_description_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


@pytest.mark.parametrize(
    ("method", "path", "operation"), list(operations()), ids=lambda v: v if v is not dict else ""
)
def test_every_operation_is_described(method: str, path: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    answers = operation["responses"]
    errors = {status for status in answers if status >= "400"}
    ours = not path.startswith("/v1/")  # of OpenAI's dialect, which has 400 for wrong fields
    usual = {"400", "401", "403", "503"} | ({"422"} if ours else set())
    assert errors >= ({"503"} if path in OPEN else usual)
    for status in errors:
        if path != "/readyz":
            shape = "application/problem+json" if ours else "application/json"
            assert list(answers[status]["content"]) == [shape]
    assert ours or "422" not in errors
    for parameter in operation.get("parameters", ()):
        assert parameter.get("description") or parameter["schema"].get("description"), parameter
    if "requestBody" in operation:
        assert "413" in errors
        for media_type, content in operation["requestBody"]["content"].items():
            assert content.get("examples"), f"{method} {path} {media_type} has no example"


@pytest.mark.parametrize(("method", "path", "media_type", "value"), list(examples()))
def test_every_example_works(
    api: Api, method: str, path: str, media_type: str, value: object
) -> None:
    """Send the example for real and expect the success that is documented."""
    operation = DOCUMENT["paths"][path][method]
    url = path.format(**resources.parameters(api, method, path))
    with api.with_key(api.key) as client:
        client.headers.update(_shown(operation, "header"))
        if "Idempotency-Key" in client.headers:  # the example is one request's: each has its own
            client.headers["Idempotency-Key"] += secrets.token_hex(4)
        answer = _send(client, method, url, media_type, value, _shown(operation, "query"))
    successes = {status for status in operation["responses"] if status < "400"}
    assert str(answer.status_code) in successes, answer.text
    if answer.status_code not in (204, 302, 307):
        content = operation["responses"][str(answer.status_code)]["content"]
        assert answer.headers["content-type"].partition(";")[0] in content


def _shown(operation: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the example values of the parameters in query or headers that have some."""
    found = {}
    for parameter in operation.get("parameters", ()):
        shown = [
            *filter(None, [parameter.get("example")]),
            *parameter["schema"].get("examples", []),
        ]
        if parameter["in"] == place and shown:
            found[parameter["name"]] = shown[0] if place == "query" else str(shown[0])
    return found


def _send(
    client: httpx.Client, method: str, url: str, media_type: str, value: object, query: Any
) -> httpx.Response:
    send: Callable[..., httpx.Response] = client.request
    if media_type == "application/json":
        return send(method.upper(), url, json=value, params=query)
    if media_type == "multipart/form-data":
        return send(method.upper(), url, **resources.form(value), params=query)
    if media_type:
        content = str(value).encode()
        headers = {"Content-Type": media_type}
        return send(method.upper(), url, content=content, headers=headers, params=query)
    return send(method.upper(), url, params=query)


@pytest.fixture(scope="session")
def live_schema(api: Api) -> Any:
    """The description at the running service; half of the path parameters really exist."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=api.url)
    return schema


def _send_generated(api: Api, operation: Any, mode: GenerationMode, count: int) -> None:
    headers = {"Authorization": f"Bearer {api.key}", "Accept": "application/json"}

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=20)

    send()


def generated() -> Iterator[Any]:
    """Each operation with right requests, and with wrong ones where anything can be wrong."""
    for method, path, operation in operations():
        has_input = operation.get("parameters") or "requestBody" in operation
        for mode in GenerationMode if has_input else [GenerationMode.POSITIVE]:
            yield pytest.param(method, path, mode, id=f"{method} {path} {mode.value}")


@pytest.mark.parametrize(("method", "path", "mode"), list(generated()))
def test_nothing_that_can_be_sent_breaks_the_service(
    api: Api, live_schema: Any, method: str, path: str, mode: GenerationMode
) -> None:
    """Generated requests, right and wrong ones: no 5xx, no answer that is not documented."""
    operation = live_schema[path][method.upper()]
    count = 30 if "requestBody" in DOCUMENT["paths"][path][method] else 12
    _send_generated(api, operation, mode, count)
