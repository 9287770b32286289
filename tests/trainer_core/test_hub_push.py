"""`publish.hub`: what a spec may say of it, and a run without a service that pushes by itself."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.hub import Fault, Hub, running_hub
from tests.services import ROOT
from tests.trainer_core.test_capabilities import CPU, SOURCE, spec
from tests.trainer_core.tiny import make_tiny_model
from trainer_core.capabilities import check
from trainer_core.problems import explain
from trainer_core.publish.by_hand import push_model
from trainer_core.resolve import resolve
from trainer_core.spec import Launch, is_repo_id
from trainer_core.words import flush

TOKEN = "hf_OfAPerson0123456789"
WISH = {"repo_id": "org/shop-sft", "token": {"secret": "hub"}}


def test_the_least_that_is_said_pushes_a_private_repository_at_the_end() -> None:
    hub = spec(publish={"hub": WISH}).publish.hub
    assert hub is not None
    assert (hub.private, hub.revision, hub.strategy) == (True, "main", "end")


_NEAR = st.text("ab-._/ é", max_size=12)
_LONG = st.sampled_from(["a/" + "b" * 96, "a/" + "b" * 97, "a/b.git", "a/b--c", "a/..", "A_/0"])


@given(st.one_of(_NEAR, _LONG, st.tuples(_NEAR, _NEAR).map("/".join)))
def test_a_repository_is_what_the_hubs_own_client_takes(text: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text)
        taken = "/" in text
    except HFValidationError:
        taken = False
    # Its `\b` lets some names begin and end with '-' or '.' beside a letter; the hub does not.
    assert is_repo_id(text) <= taken
    assert is_repo_id(text) == taken or any(
        part[:1] in "-." or part[-1:] in "-." for part in text.split("/")
    )


@pytest.mark.parametrize(
    ("wish", "pointer", "says"),
    [
        ({"repo_id": "model"}, "/publish/hub/repo_id", "write owner/name"),
        ({"repo_id": "org/a--b"}, "/publish/hub/repo_id", "is no repository of a hub"),
        ({"revision": "a" * 40}, "/publish/hub/revision", "is a commit, which never changes"),
        ({"revision": "a..b"}, "/publish/hub/revision", "is no revision"),
        ({"strategy": "all"}, "/publish/hub/strategy", "'end', 'checkpoint' or 'every_save'"),
        ({"token": None}, "/publish/hub/token", ""),
        ({"token": "hf_plain"}, "/publish/hub/token", ""),
    ],
)
def test_what_a_hub_could_not_take_is_refused(
    wish: dict[str, Any], pointer: str, says: str
) -> None:
    with pytest.raises(ValidationError) as wrong:
        spec(publish={"hub": {**WISH, **wish}})
    [problem] = explain(wrong.value)
    assert problem.pointer == pointer
    assert says in problem.message


def test_a_token_is_required() -> None:
    with pytest.raises(ValidationError) as wrong:
        spec(publish={"hub": {"repo_id": "org/model"}})
    assert [problem.pointer for problem in explain(wrong.value)] == ["/publish/hub/token"]


@pytest.mark.parametrize("strategy", ["end", "checkpoint", "every_save"])
def test_what_a_gate_could_not_take_back_is_not_pushed_before_it(strategy: str) -> None:
    blocks: dict[str, Any] = {
        "data": {"train": [SOURCE], "validation": {"split_ratio": 0.1}},
        "publish": {
            "hub": {**WISH, "strategy": strategy},
            "gate": {"metric": "loss", "threshold": 9},
        },
    }
    found = check(spec(**blocks), CPU)
    expected = [] if strategy == "end" else ["/publish/hub/strategy"]
    assert [problem.pointer for problem in found] == expected
    blocks["publish"].pop("gate")
    assert check(spec(**blocks), CPU) == []


@pytest.mark.parametrize("strategy", ["end", "checkpoint", "every_save"])
def test_where_nothing_is_saved_on_the_way_the_end_alone_is_pushed(strategy: str) -> None:
    wish = spec(publish={"hub": {**WISH, "strategy": strategy}}, checkpoint={"save_strategy": "no"})
    assert check(wish, CPU) == []
    warnings = [each for each in resolve(wish, CPU).warnings if each.code == "pushed_at_the_end"]
    assert len(warnings) == (strategy != "end")
    assert all("pushed at the end alone" in each.message for each in warnings)


# ---- without a service ----


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub(TOKEN) as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    make_tiny_model(folder / "model")
    rows = [{"prompt": f"Order {n}?", "completion": f"Day {n}."} for n in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {
        "task": {"type": "sft"},
        "model": {"source": "folder", "name_or_path": str(folder / "model")},
        "data": {"train": [{"source": "folder", "path": str(folder / "rows.jsonl")}]},
        "training": {"max_steps": 1},
        "publish": {"hub": WISH},
    }
    (folder / "spec.json").write_text(json.dumps(document))
    return folder


def run(folder: Path, hub: Hub, out: Path, token: str | None) -> tuple[int, str]:
    """Exit code and words of `trainer_core run`."""
    receive, send = os.pipe()
    os.write(send, json.dumps({"hub": token} if token else {}).encode())
    os.close(send)
    environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "trainer_core", "run", str(folder / "spec.json"), "--out", str(out)],
        cwd=ROOT,
        env=os.environ | environment | {"POLAR_SECRETS_FD": str(receive)},
        pass_fds=[receive],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    os.close(receive)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.sampled
@pytest.mark.train
@pytest.mark.parametrize("private", [True, False])
def test_a_run_without_a_service_pushes_what_it_made(
    folder: Path, hub: Hub, tmp_path: Path, *, private: bool
) -> None:
    document = json.loads((folder / "spec.json").read_text())
    document["publish"]["hub"]["private"] = private
    (folder / "spec.json").write_text(json.dumps(document))
    code, said = run(folder, hub, tmp_path, TOKEN)
    assert code == 0, said
    [commit] = hub.commits("org/shop-sft")
    assert f"pushed to {hub.url}/org/shop-sft, commit {commit.oid}" in said
    made = tmp_path / "model"
    files = {p.relative_to(made).as_posix(): p.read_bytes() for p in made.rglob("*") if p.is_file()}
    pushed = {p: c for p, c in commit.files.items() if p != ".gitattributes"}
    if not private:  # the whole spec is not for everybody
        del files["run_lock.json"]
        assert "run_lock.json" not in pushed["manifest.json"].decode()
        files["manifest.json"] = pushed["manifest.json"]
    assert pushed == files
    assert hub.repos["org/shop-sft"].private is private
    assert TOKEN not in said


@pytest.mark.sampled
@pytest.mark.train
def test_a31_a_hub_that_refuses_costs_a_run_nothing(folder: Path, hub: Hub, tmp_path: Path) -> None:
    hub.faults.append(Fault("/api/", 403, {"error": f"not with {TOKEN}"}))
    code, said = run(folder, hub, tmp_path, TOKEN)
    assert code == 0, said
    assert "not pushed: " in said
    assert "the token may not write there" in said
    assert (tmp_path / "model" / "manifest.json").is_file()
    assert TOKEN not in said


def test_whatever_breaks_a_push_costs_a_run_nothing(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((folder / "spec.json").read_text())
    named = {"attempt_id": "a", "job_id": "j", "job_name": "n", "spec": document}
    launch = Launch.model_validate({**named, "paths": {"work": str(tmp_path)}})
    push_model(launch, {"hub": TOKEN})  # there is no model
    flush()
    said = "".join(capfd.readouterr())
    assert f"not pushed: BrokenFolder: {tmp_path / 'model'} has no manifest.json" in said


@pytest.mark.train
def test_a_token_that_is_missing_ends_a_run_before_it_begins(
    folder: Path, hub: Hub, tmp_path: Path
) -> None:
    code, said = run(folder, hub, tmp_path, None)
    assert (code, "publish.hub.token: there is no secret 'hub'" in said) == (64, True), said
    assert not (tmp_path / "checkpoints").exists()
