"""`polar run-sample`: the whole way, from a model and 200 rows to a tuned model in the store."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.markup import escape
from rich.panel import Panel

from polar.commands.screen import keep_stdout, out
from polar.commands.service import AsJson, print_json
from polar.commands.stack import how_it_stopped, start, stop_it, welcome
from polar.connection import connect
from polar.follow import follow
from polar.manifest import Mismatch, verify
from polar.sdk.client import Client
from polar.sdk.errors import ClientError
from polar.sdk.jobs import Job
from polar.stack.control import Door
from polar.stack.home import Home, default_home
from polar.stack.state import running_state

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = "SmolLM2-135M-Instruct"
QUESTION = "My order is 35,000 won. How much is shipping?"
MODEL_TIMEOUT, ANSWER_TIMEOUT, MLFLOW_TIMEOUT = 900, 300, 240  # seconds


class SampleFailed(Exception):
    """A step of the sample did not give what it should."""


def run_sample(
    *,
    once: Annotated[bool, typer.Option("--once", help="Stop the stack afterwards.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a small real model on the questions of an online shop, and show what it learned."""
    if as_json:
        keep_stdout()
    home = Home(default_home())
    began = time.monotonic()
    code = 0
    try:
        stack_up(home, attached=once)
        with connect() as client:
            job = tune(home, client)
            check(home, client, job)
            next_steps(job, client.url, once=once)
            if as_json:
                print_json(job)
    except (ClientError, SampleFailed, Mismatch) as error:
        out.print(f"[bold red]failed:[/] {escape(str(error))}", soft_wrap=True)
        code = 1
    finally:
        if once:
            out.print(how_it_stopped(stop_it(home)))
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    out.print(f"[dim]took {minutes} min {seconds} s[/]")
    raise SystemExit(code)


def heading(text: str) -> None:
    """Begin a part of the output."""
    out.print(f"\n[bold cyan]{text}[/]")


def stack_up(home: Home, *, attached: bool) -> None:
    """Start the stack, or use the one that runs."""
    heading("1 · The stack: Postgres, Valkey, S3 store, API, workers, MLflow")
    state = running_state(home)
    if state is not None and state.phase == "ready":
        out.print(f"  already running at {state.url}")
        return
    state = start(home, Door(), attached=attached)
    welcome(home, state, detached=not attached)


def tune(home: Home, client: Client) -> Job:
    """Prepare model and data, submit the job and watch it; return the finished job."""
    heading(f"2 · The model: {MODEL}")
    model = lay_model(home)
    heading("3 · The data: 200 questions and answers of an online shop, in Korean and English")
    datasets = {name: upload(client, name) for name in ("shop", "shop-validation")}
    heading("4 · The training: LoRA on the assistant's words, live from POST /jobs")
    spec = filled_in(json.loads((EXAMPLES / "shop-sft.json").read_text()), model, datasets)
    job = client.jobs.create(spec)
    out.print(f"  {job.id}  [dim]{client.url}{job.links.get('self', '')}[/]", soft_wrap=True)
    seen = follow(job.id, job.events(), out)
    job = job.refresh()
    if job.status != "succeeded":
        why = f": {job.message}" if job.message else ""
        raise SampleFailed(f"the job ended as {job.status}{why}")
    early, late = (statistics.fmean(part or [0]) for part in (seen.losses[:5], seen.losses[-5:]))
    if late >= early:  # single steps are noisy: five at each end
        raise SampleFailed(f"the loss did not fall: {early:.2f} → {late:.2f}")
    out.print(f"  [green]✓[/] succeeded; loss {early:.2f} → {late:.2f} in {len(seen.losses)} steps")
    return job


def lay_model(home: Home) -> Path:
    """Return the model's folder, laid on first use by a process of its own."""
    target = home.path / "models" / MODEL
    if not (target / "config.json").exists():
        log = home.log("sample-model")
        out.print("  preparing it, once: about half a minute …")
        command = [sys.executable, "-m", "polar.sample_model", str(target)]
        with log.open("wb") as output:
            done = subprocess.run(
                [*command, str(home.path / "cache")],
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=MODEL_TIMEOUT,
                check=False,
            )
        if done.returncode:
            raise SampleFailed(f"the model could not be prepared; see {log}")
    out.print(f"  [green]✓[/] {target}", soft_wrap=True)
    return target


def upload(client: Client, name: str) -> str:
    """Upload one of the example files and return the data set's id."""
    file = EXAMPLES / f"{name}.jsonl"
    dataset = client.datasets.upload(file, name)
    rows = len(file.read_text(encoding="utf-8").splitlines())
    out.print(f"  [green]✓[/] {name}: {rows} rows as {dataset.id}")
    return dataset.id


def filled_in(spec: dict[str, Any], model: Path, datasets: dict[str, str]) -> dict[str, Any]:
    """Put this installation's model folder and data set ids into the example's spec."""
    spec["model"]["name_or_path"] = str(model)
    for source in (*spec["data"]["train"], *spec["data"]["validation"]):
        source["path"] = datasets[source["path"]]
    return spec


def check(home: Home, client: Client, job: Job) -> None:
    """Verify the published files, ask both models a question and look at the MLflow run."""
    heading("5 · The result")
    folder = home.path / "sample" / job.id
    files = download_model(client, job.id, folder)
    out.print(f"  [green]✓[/] {files} files from the store match their manifest (sha256)")
    show_answers(home.path / "models" / MODEL, folder)
    run_id, metrics = mlflow_run(home, client, job.id)
    out.print(f"  [green]✓[/] MLflow run {run_id} is FINISHED with {metrics} metrics")


def download_model(client: Client, job_id: str, folder: Path) -> int:
    """Download the job's model and check every byte; return the number of files."""
    for artifact in client.jobs.artifacts(job_id):
        path = artifact.path
        if path.startswith("model/"):
            client.jobs.download(job_id, path, folder / path.removeprefix("model/"))
    return verify(folder)


def show_answers(base: Path, adapter: Path) -> None:
    """Show what base and tuned model answer to one question."""
    command = [sys.executable, "-m", "polar.compare", str(base), str(adapter), QUESTION]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=ANSWER_TIMEOUT, check=False
    )
    if done.returncode:
        raise SampleFailed(f"the models could not be asked: {done.stderr[-500:]}")
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    for name, style in (("base", "dim"), ("tuned", "green")):
        title = f"{name} · {QUESTION}"
        panel = Panel(escape(answers[name]), title=title, border_style=style, width=90)
        out.print(panel)
    if answers["base"] == answers["tuned"]:
        raise SampleFailed("the tuned model answers like the base model")


def mlflow_run(home: Home, client: Client, job_id: str) -> tuple[str, int]:
    """Return id and number of metrics of the job's MLflow run once it is FINISHED."""
    state = running_state(home)
    address = state.processes["mlflow"].address if state else None
    deadline = time.monotonic() + MLFLOW_TIMEOUT
    found = "no run"
    while time.monotonic() < deadline:
        reference = client.jobs.get(job_id).external_refs.mlflow
        if reference is not None and (run_id := reference.run_id):
            run = _ask_mlflow(f"{address}/api/2.0/mlflow/runs/get", run_id)
            found = run.get("info", {}).get("status", found)
            metrics = run.get("data", {}).get("metrics", [])
            if found == "FINISHED" and metrics:
                return run_id, len(metrics)
        time.sleep(0.5)
    raise SampleFailed(f"MLflow does not show the finished run: {found}")


def _ask_mlflow(url: str, run_id: str) -> dict[str, Any]:
    try:
        answer = httpx.get(url, params={"run_id": run_id}, timeout=10, trust_env=False)
    except httpx.HTTPError:  # it may still be starting
        return {}
    run: dict[str, Any] = answer.json().get("run", {}) if answer.is_success else {}
    return run


def next_steps(job: Job, url: str, *, once: bool) -> None:
    """Say what can be done now."""
    if once:
        return
    heading("Next")
    out.print(f"  polar watch {job.id}     replay what you have just seen")
    out.print("  polar list · polar status · polar logs worker · polar doctor")
    out.print(f"  {url}/docs     the whole interface")
    out.print("  make down     stop everything; the data stay")
