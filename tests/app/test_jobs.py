"""Jobs over HTTP: submit, idempotency, look, list, change, cancel, delete, retry, clone."""

import concurrent.futures
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from app.errors import Conflict
from app.jobs import service
from app.keys.schemas import NewKey
from app.keys.service import create_key
from app.settings import Settings
from polar.stack.services import SeaweedFS
from tests.app.server import Api
from tests.app.stored import keep, publish, store_of
from tests.services import wait_until

SPEC = {
    "name": "shop",
    "task": {"type": "sft"},
    "model": {"name_or_path": "org/model"},
    "data": {"train": [{"source": "hub", "path": "org/data"}]},
}


def submit(api: Api, **changes: object) -> dict[str, object]:
    answer = api.client.post("/jobs", json={**SPEC, **changes})
    assert answer.status_code == 201, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_submit_writes_everything_at_once(api: Api) -> None:
    answer = api.client.post("/jobs", json=SPEC)
    job = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/jobs/{job['id']}")
    assert (job["status"], job["phase"], job["spec"]) == ("queued", "preparing", SPEC)
    assert job["resolved"]["training"]["optim"] == "adamw_torch_fused"
    events = api.rows("SELECT seq, type, data FROM job_events WHERE job_id = :id", id=job["id"])
    assert events == [(1, "status", {"status": "queued", "phase": "preparing"})]
    assert api.rows("SELECT status FROM preparations WHERE job_id = :id", id=job["id"]) == [
        ("waiting",)
    ]
    hints = api.rows(
        "SELECT queue, handler FROM outbox WHERE args = jsonb_build_array(CAST(:id AS text))",
        id=job["id"],
    )
    assert hints == [("prepare", "prepare")]
    shown = api.client.get(f"/jobs/{job['id']}").json()
    assert {k: shown[k] for k in ("spec", "resolved", "created_at", "status")} == {
        k: job[k] for k in ("spec", "resolved", "created_at", "status")
    }


def test_same_key_same_body_gets_the_first_answer_again(api: Api) -> None:
    headers = {"Idempotency-Key": "nightly-1"}
    first = api.client.post("/jobs", json=SPEC, headers=headers)
    again = api.client.post("/jobs", json=SPEC, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    other = api.client.post("/jobs", json={**SPEC, "priority": 3}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")


def test_a_body_that_failed_validation_is_not_remembered(api: Api) -> None:
    headers = {"Idempotency-Key": "nightly-2"}
    wrong = {**SPEC, "data": {"train": [{"source": "dataset", "path": "ds_missing"}]}}
    assert api.client.post("/jobs", json=wrong, headers=headers).status_code == 422
    assert api.client.post("/jobs", json=SPEC, headers=headers).status_code == 201


def test_an_old_key_is_free_again(api: Api) -> None:
    headers = {"Idempotency-Key": "nightly-3"}
    first = api.client.post("/jobs", json=SPEC, headers=headers).json()
    api.write(
        "UPDATE idempotency_keys SET created_at = now() - interval '25 hours' WHERE key = :key",
        key="nightly-3",
    )
    second = api.client.post("/jobs", json={**SPEC, "priority": 1}, headers=headers)
    assert second.status_code == 201
    assert second.json()["id"] != first["id"]


def test_many_at_once_make_one_job(api: Api) -> None:
    """Only one of 16 simultaneous requests writes; the others see its answer or `in_flight`."""

    def send(_: int) -> tuple[int, str]:
        answer = api.client.post("/jobs", json=SPEC, headers={"Idempotency-Key": "storm"})
        found = answer.json()
        return answer.status_code, found["id"] if answer.status_code == 201 else found["code"]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(send, range(16)))
    assert len({text for status, text in answers if status == 201}) == 1
    assert {text for status, text in answers if status != 201} <= {"in_flight"}
    replay = api.client.post("/jobs", json=SPEC, headers={"Idempotency-Key": "storm"})
    assert replay.status_code == 201


def test_a_key_in_flight_is_refused_until_its_holder_is_done(api: Api) -> None:
    with api.engine.begin() as holder:
        lock = "SELECT pg_advisory_xact_lock(hashtextextended('prj_default/held', 0))"
        holder.execute(text(lock))
        answer = api.client.post("/jobs", json=SPEC, headers={"Idempotency-Key": "held"})
        assert (answer.status_code, answer.json()["code"]) == (409, "in_flight")
    answer = api.client.post("/jobs", json=SPEC, headers={"Idempotency-Key": "held"})
    assert answer.status_code == 201


@pytest.mark.parametrize("key", ["x" * 256, "", "two words"])
def test_a_key_that_is_none_is_refused(api: Api, key: str) -> None:
    answer = api.client.post("/jobs", json=SPEC, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json()["message"].title() or "idempotency" in answer.text


@pytest.mark.parametrize(
    ("change", "pointer", "part"),
    [
        ({"trainig": {}}, "/trainig", "training"),
        ({"training": {"learning_rat": 1}}, "/training/learning_rat", "learning_rate"),
        ({"training": {"learning_rate": "fast"}}, "/training/learning_rate", "number"),
        ({"data": {"train": []}}, "/data/train", "1"),
        ({"data": {"train": [{"source": "hub"}]}}, "/data/train/0/path", "missing"),
        (
            {"data": {"train": [{"source": "dataset", "path": "ds_1"}]}},
            "/data/train/0/path",
            "ds_1",
        ),
        (
            {"model": {"name_or_path": "m", "token": {"secret": "gone"}}},
            "/model/token/secret",
            "gone",
        ),
        ({"model": {"name_or_path": "m", "token": "hf_abcdef"}}, "/model/token", "object"),
        ({"model": {"source": "registry", "name_or_path": "no"}}, "/model/name_or_path", "no"),
        ({"model": {"source": "job", "name_or_path": "job_x"}}, "/model/name_or_path", "job_x"),
        ({"model": {"source": "folder", "name_or_path": "/etc"}}, "/model/name_or_path", "folder"),
        ({"model": {"name_or_path": "m", "subfolder": "../.."}}, "/model/subfolder", "leads out"),
        ({"training": {"max_steps": 10**12}}, "/training/max_steps", "at most 1000000000"),
        ({"training": {"max_steps": True}}, "/training/max_steps", "a whole number"),
        ({"compute": {"target": "fake"}}, "/compute/target", "fake"),
        ({"labels": {"a": 1}}, "/labels/a", "string"),
        ({"task": {"type": "sfd"}}, "/task/type", "sft"),
    ],
)
def test_a_wrong_field_is_named_with_the_way_out(
    api: Api, change: dict[str, object], pointer: str, part: str
) -> None:
    before = api.rows("SELECT count(*) FROM jobs")
    answer = api.client.post("/jobs", json={**SPEC, **change})
    problem = answer.json()
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [e["pointer"] for e in problem["errors"]] == [pointer]
    assert part in problem["errors"][0]["message"]
    assert "hf_abcdef" not in answer.text
    assert api.rows("SELECT count(*) FROM jobs") == before


def test_text_that_postgres_cannot_hold_is_refused(api: Api) -> None:
    changes: dict[str, dict[str, object]] = {
        "/labels/a": {"labels": {"a": "x\0y"}},
        "/task/default_system": {"task": {"type": "sft", "default_system": "\0"}},
        "/adapter/target_modules/0": {"adapter": {"type": "lora", "target_modules": ["q\0"]}},
    }
    for pointer, change in changes.items():
        answer = api.client.post("/jobs", json={**SPEC, **change})
        assert answer.status_code == 422
        assert [e["pointer"] for e in answer.json()["errors"]] == [pointer]
        assert "a NUL character" in answer.json()["message"]


@pytest.mark.parametrize("bucket", ["127.0.0.1:9000", "..", "x@evil.com", "arn:aws:s3:::x", "a"])
def test_what_cannot_be_a_bucket_is_refused_at_once(api: Api, bucket: str) -> None:
    api.client.put("/secrets/keys", json={"value": "AK:SK-0123456789"})
    source = {"source": "s3", "path": f"s3://{bucket}/x.jsonl", "token": {"secret": "keys"}}
    answer = api.client.post("/jobs", json={**SPEC, "data": {"train": [source]}})
    assert answer.status_code == 422
    [problem] = answer.json()["errors"]
    assert problem["pointer"] == "/data/train/0/path"
    assert "cannot be a bucket's name" in problem["message"]


def test_what_is_for_the_service_alone_is_known_to_the_trainer() -> None:
    """`trainer_core run` takes the specs of jobs, and leaves these fields out."""
    from app.jobs.spec import JobSpec
    from trainer_core.launch import OF_THE_SERVICE
    from trainer_core.spec import TrainSpec

    assert set(OF_THE_SERVICE) == set(JobSpec.model_fields) - set(TrainSpec.model_fields)


def test_folders_are_allowed_by_list_and_links_do_not_climb_out(api: Api, tmp_path: Path) -> None:
    home = Path(api.environment["POLAR_HOME"])
    allowed = home / "open data"
    (allowed / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "secret.jsonl").write_text("{}\n")
    link = allowed / "link.jsonl"
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "secret.jsonl")
    loop = allowed / "loop"
    loop.unlink(missing_ok=True)
    loop.symlink_to(loop)

    def status(path: str) -> tuple[int, str]:
        data = {"train": [{"source": "folder", "path": path}]}
        answer = api.client.post("/jobs", json={**SPEC, "data": data})
        return answer.status_code, answer.text

    assert status(f"{allowed}/a.jsonl")[0] == 201
    for path in (
        str(link),
        str(loop),
        f"{allowed}/../a.jsonl",
        f"{allowed}/missing.jsonl",
        str(tmp_path),
        "relative.jsonl",
    ):
        code, body = status(path)
        assert code == 422, path
        assert "/data/train/0/path" in body


def test_places_of_other_projects_in_the_bucket_are_refused(api: Api) -> None:
    own = api.environment["S3_BUCKET"]
    for key in ("prj_other/datasets/x", "prj_default/../prj_other/x", "mlflow/1/x", ""):
        location = f"s3://{own}/{key}"
        data = {"train": [{"source": "s3", "path": location}]}
        model = {"source": "s3", "name_or_path": location}
        answer = api.client.post("/jobs", json={**SPEC, "data": data, "model": model})
        pointers = [each["pointer"] for each in answer.json()["errors"]]
        assert (answer.status_code, pointers) == (
            422,
            ["/data/train/0/path", "/model/name_or_path"],
        )
    data = {"train": [{"source": "s3", "path": f"s3://{own}/prj_default/x.jsonl"}]}
    assert api.client.post("/jobs", json={**SPEC, "data": data}).status_code == 201


def test_what_nobody_stored_in_another_project_is_not_seen(api: Api) -> None:
    job = submit(api)
    api.write(
        "INSERT INTO projects (id, name) VALUES ('prj_other', 'other') ON CONFLICT DO NOTHING"
    )
    with Session(api.engine) as session, session.begin():
        made = create_key(session, "prj_other", NewKey(name="other", role="admin"))
    other = api.with_key(made.key)
    assert other.get(f"/jobs/{job['id']}").status_code == 404
    assert other.post(f"/jobs/{job['id']}/cancel").status_code == 404
    assert other.delete(f"/jobs/{job['id']}").status_code == 404
    assert other.patch(f"/jobs/{job['id']}", json={"priority": 1}).status_code == 404
    assert other.post(f"/jobs/{job['id']}/clone").status_code == 404
    assert other.get("/jobs").json() == {"items": [], "next_cursor": None}
    keys = {item["id"] for item in other.get("/api-keys").json()["items"]}
    assert keys == {made.id}


def test_pages_are_newest_first_and_complete(api: Api) -> None:
    label = {"page": "1"}
    made = [submit(api, labels=label, name=f"p{i}")["id"] for i in range(7)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        query = {"label.page": "1", "limit": 3, **({"cursor": cursor} if cursor else {})}
        page = api.client.get("/jobs", params=query).json()
        seen += [job["id"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(made)
    assert seen == sorted(seen, reverse=True)


def test_filters_and_slim_lists(api: Api) -> None:
    job = submit(api, name="find_me-100", labels={"team/x": "r&d"})
    submit(api, name="findXme-100")
    found = api.client.get("/jobs", params={"q": "find_me", "fields": "status,name"}).json()
    assert found["items"] == [{"id": job["id"], "status": "queued", "name": "find_me-100"}]
    by_label = api.client.get("/jobs", params={"label.team/x": "r&d", "status": "queued"}).json()
    assert [item["id"] for item in by_label["items"]] == [job["id"]]
    assert (
        api.client.get("/jobs", params={"q": "find_me", "status": "failed"}).json()["items"] == []
    )
    past = {"q": "find_me", "created_before": "2020-01-01T00:00:00Z"}
    assert api.client.get("/jobs", params=past).json()["items"] == []
    past["created_after"] = past.pop("created_before")
    assert len(api.client.get("/jobs", params=past).json()["items"]) == 1


@pytest.mark.parametrize(
    ("query", "status", "part"),
    [
        ({"statu": "queued"}, 422, "status"),
        ({"status": "Queued"}, 422, "status"),
        ({"limit": 0}, 422, "limit"),
        ({"limit": 201}, 422, "limit"),
        ({"cursor": "nonsense"}, 400, "cursor"),
        ({"fields": "id,spce"}, 422, "spce"),
        ({"created_after": "yesterday"}, 422, "created_after"),
        ({"label.": "x"}, 422, "label"),
        ({"q": "a\0b"}, 422, "q"),
    ],
)
def test_a_wrong_query_is_named(api: Api, query: dict[str, object], status: int, part: str) -> None:
    answer = api.client.get("/jobs", params=query)
    assert answer.status_code == status, answer.text
    assert part in answer.json()["message"]


def test_cancel_of_a_waiting_job_is_at_once_and_repeatable(api: Api) -> None:
    job = submit(api)
    first = api.client.post(f"/jobs/{job['id']}/cancel")
    again = api.client.post(f"/jobs/{job['id']}/cancel")
    assert (first.status_code, first.json()["status"]) == (202, "cancelled")
    assert first.json() == again.json()
    assert first.json()["finished_at"]
    assert api.rows(
        "SELECT seq, data ->> 'status' FROM job_events WHERE job_id = :id ORDER BY seq",
        id=job["id"],
    ) == [(1, "queued"), (2, "cancelled")]


def test_cancel_of_a_running_job_is_a_wish(api: Api) -> None:
    job = submit(api)
    for status in ("provisioning", "running"):
        api.write("UPDATE jobs SET status = :s WHERE id = :id", s=status, id=job["id"])
    first = api.client.post(f"/jobs/{job['id']}/cancel").json()
    again = api.client.post(f"/jobs/{job['id']}/cancel").json()
    assert (first["status"], first["cancel_requested_at"]) == (
        "running",
        again["cancel_requested_at"],
    )
    assert first["cancel_requested_at"]
    wishes = api.rows("SELECT data FROM job_events WHERE job_id = :id AND seq > 1", id=job["id"])
    assert wishes == [({"status": "running", "phase": "preparing", "cancel_requested": True},)]


def _finished(api: Api, status: str, reason: str | None = None) -> str:
    job_id = str(submit(api)["id"])
    for step in ("provisioning", "running", "finalizing"):
        api.write("UPDATE jobs SET status = :s WHERE id = :id", s=step, id=job_id)
    api.write(
        "UPDATE jobs SET status = :s, reason = :r, finished_at = now() WHERE id = :id",
        s=status,
        r=reason,
        id=job_id,
    )
    return job_id


@pytest.mark.parametrize(("status", "reason"), [("succeeded", None), ("failed", "diverged")])
def test_what_is_over_cannot_be_cancelled(api: Api, status: str, reason: str | None) -> None:
    answer = api.client.post(f"/jobs/{_finished(api, status, reason)}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_finished")
    assert status in answer.json()["message"]


def test_a_failed_job_says_whose_turn_it_is(api: Api) -> None:
    job = api.client.get(f"/jobs/{_finished(api, 'failed', 'diverged')}").json()
    assert (job["reason"], job["turn"]) == ("diverged", "owner")  # lifecycle.RULES


def test_patch_changes_what_it_names(api: Api) -> None:
    job = submit(api, labels={"a": "1"})
    changed = api.client.patch(f"/jobs/{job['id']}", json={"priority": 7, "name": "renamed"}).json()
    assert (changed["priority"], changed["name"], changed["labels"]) == (7, "renamed", {"a": "1"})
    assert api.client.patch(f"/jobs/{job['id']}", json={"labels": {}}).json()["labels"] == {}
    for wrong in ({"status": "failed"}, {"name": None}, {"priority": 101}):
        assert api.client.patch(f"/jobs/{job['id']}", json=wrong).status_code == 422
    over = _finished(api, "succeeded")
    assert api.client.patch(f"/jobs/{over}", json={"priority": 1}).status_code == 409
    assert api.client.patch(f"/jobs/{over}", json={"name": "kept"}).status_code == 200


def test_queue_position_follows_priority_then_age(api: Api) -> None:
    early, late = submit(api), submit(api)

    def show(job: dict[str, object]) -> int:
        return api.client.get(f"/jobs/{job['id']}").json()["queue_position"]

    assert show(late) == show(early) + 1
    api.client.patch(f"/jobs/{late['id']}", json={"priority": 99})
    assert show(late) == 1
    api.client.post(f"/jobs/{late['id']}/cancel")


def test_delete_is_for_finished_and_released_jobs(api: Api) -> None:
    job = submit(api)
    assert api.client.delete(f"/jobs/{job['id']}").json()["code"] == "job_not_finished"
    over = _finished(api, "succeeded")
    api.write(
        """INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome,
        finished_at) VALUES (:a, 'prj_default', :id, 1, 'local', 'n', 'succeeded', now())""",
        a=f"att_{over[4:]}",
        id=over,
    )
    refused = api.client.delete(f"/jobs/{over}")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_released")
    api.write("UPDATE attempts SET released_at = now() WHERE job_id = :id", id=over)
    assert api.client.delete(f"/jobs/{over}").status_code == 204
    assert api.client.get(f"/jobs/{over}").status_code == 404
    assert api.rows("SELECT count(*) FROM job_events WHERE job_id = :id", id=over) == [(0,)]


def test_b30_a_job_stays_until_its_mlflow_run_is_closed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=Path(api.environment["POLAR_HOME"]), mlflow_url="http://127.0.0.1:9")
    monkeypatch.setattr(service, "get_settings", lambda: settings)
    over = _finished(api, "cancelled")
    api.write("INSERT INTO mlflow_runs (job_id, project_id) VALUES (:id, 'prj_default')", id=over)
    engine = create_engine(api.environment["POLAR_DATABASE_URL"])
    with Session(engine) as session, pytest.raises(Conflict, match="MLflow run is not closed"):
        service.check_deletable(session, "prj_default", over)
    # An MLflow that does not answer keeps nothing; neither does a run that is closed.
    change = "UPDATE mlflow_runs SET failures = :n, closed_status = :status WHERE job_id = :id"
    for failures, closed in ((1, None), (0, "KILLED")):
        api.write(change, n=failures, status=closed, id=over)
        with Session(engine) as session:
            assert service.check_deletable(session, "prj_default", over).id == over
    engine.dispose()


def test_delete_with_artifacts_empties_the_jobs_prefix(api: Api, seaweed: SeaweedFS) -> None:
    kept, emptied = _finished(api, "succeeded"), _finished(api, "succeeded")
    client, bucket = seaweed.client(), api.environment["S3_BUCKET"]
    for job_id in (kept, emptied):
        client.put_object(Bucket=bucket, Key=f"prj_default/jobs/{job_id}/a/model/x", Body=b"1")
    assert api.client.delete(f"/jobs/{kept}").status_code == 204
    assert api.client.delete(f"/jobs/{emptied}", params={"artifacts": True}).status_code == 204
    found = {
        job_id: client.list_objects_v2(Bucket=bucket, Prefix=f"prj_default/jobs/{job_id}/")
        for job_id in (kept, emptied)
    }
    assert {job_id: page["KeyCount"] for job_id, page in found.items()} == {kept: 1, emptied: 0}


def test_delete_with_artifacts_takes_the_model_out_of_the_registry(api: Api) -> None:
    made = publish(api, "doomed", {"config.json": b"{}"})
    user = submit(api, model={"source": "registry", "name_or_path": "doomed"})
    for step in ("provisioning", "running", "finalizing", "succeeded"):
        api.write(
            """UPDATE jobs SET status = :s,
            finished_at = CASE WHEN :s = 'succeeded' THEN now() END WHERE id = :id""",
            s=step,
            id=made.job_id,
        )
    refused = api.client.delete(f"/jobs/{made.job_id}", params={"artifacts": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "model_in_use")
    api.client.post(f"/jobs/{user['id']}/cancel")
    assert api.client.delete(f"/jobs/{made.job_id}", params={"artifacts": True}).status_code == 204
    assert api.client.get("/models/doomed/versions").status_code == 404
    assert list(store_of(api).list_objects("prj_default/models/doomed/")) == []


def test_delete_keeps_artifacts_but_not_checkpoints(api: Api) -> None:
    job_id = _finished(api, "succeeded")
    store, prefix = store_of(api), _checkpoint(api, job_id, 4)
    store.put_bytes(f"{prefix}weights", b"1")
    keep(api, job_id, "model/config.json", b"{}")
    assert api.client.delete(f"/jobs/{job_id}").status_code == 204
    left = [item.key for item in store.list_objects(f"prj_default/jobs/{job_id}/")]
    assert left == [f"prj_default/jobs/{job_id}/att/model/config.json"]


def _checkpoint(api: Api, job_id: str, step: int) -> str:
    attempt, prefix = f"att_{job_id[4:]}", f"prj_default/jobs/{job_id}/checkpoints/{step}/"
    api.write(
        """INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome,
        finished_at, released_at) VALUES (:a, 'prj_default', :id, 1, 'local', 'n', 'failed', now(),
        now()) ON CONFLICT DO NOTHING""",
        a=attempt,
        id=job_id,
    )
    api.write(
        """INSERT INTO checkpoints (id, project_id, job_id, attempt_id, step, prefix,
        manifest_sha256, size) VALUES (:c, 'prj_default', :id, :a, :step, :prefix, 'x', 1)""",
        c=f"ckp_{job_id[4:]}{step}",
        id=job_id,
        a=attempt,
        step=step,
        prefix=prefix,
    )
    return prefix


def test_retry_goes_on_from_the_newest_checkpoint(api: Api) -> None:
    parent = _finished(api, "failed", "killed")
    _checkpoint(api, parent, 8)
    prefix = _checkpoint(api, parent, 16)
    # As a job of an older version, which resolved nothing of publishing.
    api.write("UPDATE jobs SET resolved = resolved - 'publish' WHERE id = :id", id=parent)
    answer = api.client.post(f"/jobs/{parent}/retry")
    job = answer.json()
    assert job["resolved"]["publish"] == {"registry": True}
    assert (answer.status_code, answer.headers["location"]) == (201, f"/jobs/{job['id']}")
    assert job["retry_of"] == parent
    assert job["start_from"] == {"job_id": parent, "step": 16, "prefix": prefix}
    scratch = api.client.post(f"/jobs/{parent}/retry", json={"from_scratch": True}).json()
    assert (scratch["start_from"], scratch["spec"]) == (None, SPEC)
    in_use = api.client.delete(f"/jobs/{parent}")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "in_use")


def test_b26_retry_goes_on_from_the_last_attempt_even_if_it_went_back(api: Api) -> None:
    parent = _finished(api, "failed", "killed")
    _checkpoint(api, parent, 16)
    _checkpoint(api, parent, 8)
    api.write(
        """INSERT INTO attempts (id, project_id, job_id, number, target, nonce, outcome,
        finished_at, released_at) VALUES (:a, 'prj_default', :id, 2, 'local', 'n', 'failed', now(),
        now())""",
        a=f"at2_{parent[4:]}",
        id=parent,
    )
    api.write(
        "UPDATE checkpoints SET attempt_id = :a WHERE job_id = :id AND step = 8",
        a=f"at2_{parent[4:]}",
        id=parent,
    )
    listed = api.client.get(f"/jobs/{parent}/checkpoints").json()["items"]
    assert [item["step"] for item in listed] == [8, 16]  # the one to resume from first
    assert api.client.post(f"/jobs/{parent}/retry").json()["start_from"]["step"] == 8


def test_retry_is_for_finished_jobs_that_did_not_succeed(api: Api) -> None:
    assert api.client.post(f"/jobs/{submit(api)['id']}/retry").json()["code"] == "job_not_finished"
    done = _finished(api, "succeeded")
    assert api.client.post(f"/jobs/{done}/retry").json()["code"] == "job_succeeded"
    assert api.client.post(f"/jobs/{done}/retry", json={"from_scratch": True}).status_code == 201


def test_clone_takes_a_merge_patch(api: Api) -> None:
    parent = submit(api, training={"learning_rate": 1e-4, "num_train_epochs": 2})
    overrides = {"training": {"learning_rate": 5e-5, "num_train_epochs": None}, "priority": 4}
    job = api.client.post(f"/jobs/{parent['id']}/clone", json={"overrides": overrides}).json()
    assert job["clone_of"] == parent["id"]
    assert (job["spec"]["training"], job["priority"]) == ({"learning_rate": 5e-5}, 4)
    wrong = {"overrides": {"training": {"learning_rat": 1}}}
    answer = api.client.post(f"/jobs/{parent['id']}/clone", json=wrong)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/overrides/training/learning_rat"


def test_gpus_that_no_online_host_has_are_refused(api: Api) -> None:
    asked = {"compute": {"gpus": {"name": "A100", "count": 2}}}
    waiting = submit(api, **asked)
    assert [w["code"] for w in waiting["warnings"]] == ["no_worker"]
    assert waiting["resolved"]["precision"] == "auto"  # the machine that takes it decides
    api.write(
        """INSERT INTO workers (id, project_id, kind, hostname, pid)
        VALUES ('wrk_1', 'prj_default', 'host', 'box', 1)"""
    )
    api.write(
        """INSERT INTO devices (worker_id, index, project_id, kind, name, memory_gb)
        VALUES ('wrk_1', 0, 'prj_default', 'cuda', 'NVIDIA A100-SXM4-80GB', 80)"""
    )
    refused = wait_until(
        lambda: (a := api.client.post("/jobs", json={**SPEC, **asked})).status_code == 422 and a
    )
    assert refused.json()["errors"][0]["pointer"] == "/compute/gpus"
    small = {"name_or_path": "org/small-135m"}
    one = submit(api, compute={"gpus": {"name": "a100", "min_memory_gb": 40}}, model=small)
    assert one["warnings"] == []
    assert one["resolved"]["precision"] == "bf16"  # Ampere has it; a CPU gets fp32
    far = {"precision": "fp16", "adapter": {"type": "lora"}, "model": {**small, "dtype": "fp16"}}
    assert submit(api, **far)["resolved"]["precision"] == "fp16"
    targets = api.client.get("/targets").json()["items"]
    ours = [worker for worker in targets[0]["workers"] if worker["id"] == "wrk_1"]
    assert [d["name"] for w in ours for d in w["devices"]] == ["NVIDIA A100-SXM4-80GB"]
    api.write("DELETE FROM workers WHERE id = 'wrk_1'")
