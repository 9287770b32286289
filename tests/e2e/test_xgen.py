"""XGen's samples on the running stack: as its proxy posts them, and as a browser follows a job."""

import json
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.xgen.examples import GEMMA, QWEN
from tests.e2e.browser import CHROMIUM, Pages
from tests.e2e.harness import World
from tests.hub import Hub
from tests.services import wait_until

pytestmark = pytest.mark.train
WORDS = ("pending", "running", "completed", "failed")


@pytest.fixture(scope="module")
def rows(world: World) -> Path:
    path = world.data / "instructions.jsonl"
    lines = (
        json.dumps({"instruction": f"Where is order {n}?", "output": f"Order {n} was sent."})
        for n in range(40)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def form(world: World, rows: Path, sample: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A sample with a small model and a few rows in place of its own."""
    run = f"job_{secrets.token_hex(6)}"
    mine = {"model_name_or_path": str(world.model), "train_data": str(rows), "mlflow_run_id": run}
    return {**sample, **mine, **changes}


def proxy(world: World) -> httpx.Client:
    headers = {"Authorization": f"Bearer {world.client.key}", "X-User-ID": "17"}
    return httpx.Client(base_url=f"{world.client.url}/api/train", headers=headers, timeout=30)


@pytest.mark.parametrize("sample", [GEMMA, QWEN], ids=["gemma", "qwen"])
def test_a_sample_trains_and_gets_to_its_hub(
    world: World, hub: Hub, rows: Path, sample: dict[str, Any]
) -> None:
    with proxy(world) as client:
        sent = form(world, rows, sample, hugging_face_token=hub.token)
        started = client.post("/start", json=sent)
        assert started.status_code == 200, started.text
        job_id = started.json()["job_id"]
        seen: list[str] = []

        def ended() -> dict[str, Any] | None:
            told: dict[str, Any] = client.get(f"/status/{sent['mlflow_run_id']}").json()
            seen.append(told["status"])
            return told if told["status"] in ("completed", "failed") else None

        told = wait_until(ended, timeout=180, every=0.2)
        assert (told["job_id"], told["status"]) == (job_id, "completed"), told
        assert [WORDS.index(word) for word in seen] == sorted(WORDS.index(word) for word in seen)
        assert told["metrics"]["loss"] > 0
        listed = {job["job_id"]: job["status"] for job in client.get("/jobs").json()["jobs"]}
        assert listed[job_id] == "completed"
        assert client.delete(f"/stop/{job_id}").status_code == 409

    def pushed() -> bool:
        ref = world.get(job_id)["external_refs"]["hub"]
        return bool(ref["state"] == "pushed" and ref["kind"] == "model")

    wait_until(pushed, timeout=180)
    assert "model.safetensors" in hub.repos[f"org/{sample['hub_model_id']}"].files
    assert hub.token not in json.dumps(world.get(job_id)) + json.dumps(world.events(job_id))


def test_a_running_training_is_stopped_by_its_reference(world: World, rows: Path) -> None:
    with proxy(world) as client:

        def free() -> list[str]:
            offers = client.get("/offers").json()["items"]
            return [offer["offer_id"] for offer in offers if offer["state"] == "free"]

        offer = wait_until(free, timeout=60)[0]
        held = client.post("/instances", json={"offer_id": offer, "auto_destroy": True}).json()
        assert (held["success"], held["status"], held["polar_status"]) == (True, "running", "held")
        sent = form(world, rows, GEMMA, num_train_epochs=5000, push_to_hub=False)
        job_id = client.post("/start", json=sent).json()["job_id"]
        world.until(job_id, "running")
        used = client.get(f"/instances/{held['instance_id']}").json()
        assert (used["status"], used["polar_status"]) == ("completed", "used")
        assert used["job_id"] == job_id
        stopped = client.delete(f"/stop/{sent['mlflow_run_id']}").json()
        assert stopped["job_id"] == job_id

        def ended() -> bool:
            told = client.get(f"/status/{job_id}").json()
            return bool(told["status"] == "failed" and told["polar_status"] == "cancelled")

        wait_until(ended, timeout=60)


# The page does what XGen's do: one client is an EventSource with cookies that hears unnamed
# messages alone, the other reads chunks and keeps no part of a line.
PAGE = """<!doctype html><script>
const post = (url, body, more) => fetch(url, {
  method: 'POST', credentials: 'include', body: JSON.stringify(body),
  headers: {'Content-Type': 'application/json', ...more}});
function byEventSource(url) {
  return new Promise(resolve => {
    const events = [], source = new EventSource(url, {withCredentials: true});
    source.onmessage = message => {
      const event = JSON.parse(message.data);
      if (event.type === 'heartbeat') return;
      events.push(event);
      if (event.type === 'end') { source.close(); resolve(events); }
    };
  });
}
async function byChunks(url) {
  const events = [], lost = [];
  const answer = await fetch(url, {credentials: 'include', headers: {Accept: 'text/event-stream'}});
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return {events, lost};
    for (const line of decoder.decode(value).split('\\n')) {
      if (!line.startsWith('data: ')) continue;
      try { events.push(JSON.parse(line.slice(6))); } catch (error) { lost.push(line); }
    }
  }
}
(async () => {
  const told = {};
  try {
    const {api, key, form} = await (await fetch('/config')).json();
    told.session = (await post(api + '/session', {}, {Authorization: 'Bearer ' + key})).status;
    told.cookies = document.cookie;
    const started = await (await post(api + '/api/train/start', form)).json();
    const url = api + '/jobs/' + started.job_id + '/events?heartbeat=event';
    [told.source, told.chunks] = await Promise.all([byEventSource(url), byChunks(url)]);
    told.replay = await byChunks(url);
    const named = api + '/api/train/status/' + form.mlflow_run_id;
    told.status = await (await fetch(named, {credentials: 'include'})).json();
    const wrong = await post(api + '/api/train/start', {...form, fp16: true, bf16: true});
    told.wrong = {status: wrong.status, ...(await wrong.json())};
  } catch (error) { told.error = String(error); }
  await fetch('/said', {method: 'POST', body: JSON.stringify(told)});
})();
</script>"""


@pytest.mark.skipif(
    CHROMIUM is None,
    reason="no chromium; make test installs it where it is root (.ci/browser)",
)
def test_a_browser_sees_every_event_once(
    world: World, pages: Pages, rows: Path, tmp_path: Path
) -> None:
    sent = form(world, rows, GEMMA, push_to_hub=False, logging_steps=1)
    config = {"api": world.client.url, "key": world.client.key, "form": sent}
    told = pages.ask(PAGE, config, tmp_path, timeout=180)
    assert "error" not in told, told
    assert (told["session"], told["cookies"]) == (204, "")
    stored = [event["seq"] for event in world.events(told["status"]["job_id"])]
    for seen in (told["source"], told["chunks"]["events"], told["replay"]["events"]):
        numbered = [event["seq"] for event in seen if "seq" in event]
        assert Counter(numbered) == Counter(stored[: len(numbered)])
        assert numbered == sorted(numbered)
        last = seen[-1]
        assert (last["type"], last["status"]) == ("end", "succeeded")
        assert last["last_seq"] == numbered[-1]
    assert told["chunks"]["lost"] == told["replay"]["lost"] == []
    assert told["status"]["status"] == "completed"
    assert told["wrong"]["status"] == 422
    assert "bf16 and fp16 are both true" in told["wrong"]["message"]
