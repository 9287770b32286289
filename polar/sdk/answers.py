"""What the service answers; written by `make openapi` from openapi/openapi.json."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of all answers; fields that a newer service adds are kept as they come."""

    model_config = ConfigDict(extra="allow", defer_build=True)


class KeyOut(Answer):
    """A key without its secret part."""

    created_at: datetime
    id: str
    last_used_at: datetime | None
    name: str
    prefix: str
    """The public part: `polar_<prefix>_…`."""
    role: Literal["viewer", "submitter", "operator", "admin"] | str


class KeyList(Answer):
    """The project's keys."""

    items: list[KeyOut]


class CreatedKey(Answer):
    """A new key; `key` is shown in this answer only."""

    created_at: datetime
    id: str
    key: str = Field(repr=False)
    last_used_at: datetime | None
    name: str
    prefix: str
    """The public part: `polar_<prefix>_…`."""
    role: Literal["viewer", "submitter", "operator", "admin"] | str


class Combination(Answer):
    """One row of the table."""

    adapter: str
    """`none`: all weights are trained."""
    backend: str
    quantization: str
    """How the base is held; `none`: in 16 or 32 bits."""
    reason: str | None
    """Why it is refused."""
    strategy: str
    supported: bool
    target: str
    task: str


class GpuOnly(Answer):
    """A value of a field that needs a GPU."""

    pointer: str
    reason: str
    """Why, and what to use on a CPU."""
    value: str


class TaskSchema(Answer):
    """The JSON schema of a task's block, for building forms."""

    json_schema: dict[str, Any]
    type: str


class CapabilitiesOut(Answer):
    """Everything that a job may combine."""

    combinations: list[Combination]
    gpu_only: list[GpuOnly]
    """Refused where there is no GPU."""
    job_schema: dict[str, Any]
    """The JSON schema of a whole job."""
    tasks: list[TaskSchema]


class Range(Answer):
    """What became of a metric."""

    largest: float
    last: float
    smallest: float


class Compared(Answer):
    """One of the jobs, with only the fields in which they differ."""

    curves: dict[str, list[tuple[int, float]]]
    """Points [step, value] by name."""
    fields: dict[str, Any]
    """By dotted name, from the resolved specs."""
    id: str
    metrics: dict[str, Range]
    """By name; a metric it lacks is left out."""
    name: str
    status: (
        Literal[
            "queued",
            "provisioning",
            "running",
            "finalizing",
            "paused",
            "succeeded",
            "failed",
            "cancelled",
        ]
        | str
    )


class Comparison(Answer):
    """Jobs side by side, in the order asked for; of a sweep in that of its runs."""

    jobs: list[Compared]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class ProblemOut(Answer):
    """Something that preparation will object to."""

    line: int | None
    """Line (row of a Parquet file); null: the file."""
    message: str


class DatasetOut(Answer):
    """One version of a data set."""

    columns: list[str] | None
    created_at: datetime
    file_format: str | None
    """jsonl, json, csv, parquet or zip; null: not read."""
    file_name: str | None
    id: str
    """Name it in a job as `data.train[].path`."""
    links: dict[str, str]
    location: str
    """Repository id or `s3://` address."""
    name: str
    problems: list[ProblemOut]
    row_format: str | None
    """messages, sharegpt, alpaca, prompt_completion, text or another one of a source's
    `format`; null: none fits, or several do (`problems` says which).
    """
    rows: int | None
    sha256: str | None
    size: int | None
    source: Literal["upload", "hub", "s3"] | str
    version: int


class DatasetPage(Answer):
    """Data sets, newest first."""

    items: list[DatasetOut]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class PreviewRow(Answer):
    """One row as it is in the file, as far as it is shown."""

    line: int
    problem: str | None
    shortened: bool
    """Long texts and lists are cut, as `…` says."""
    values: dict[str, Any]


class Preview(Answer):
    """The first rows."""

    dataset_id: str
    note: str | None
    """Why there are no rows, or fewer than asked for."""
    rows: list[PreviewRow]


class Event(Answer):
    """A fact of a job."""

    data: dict[str, Any]
    """What happened. `metrics` that come faster than about 200 a second are joined: the newest
    values stand here, and `points` lists every point with its step and time.
    """
    job_id: str
    seq: int
    """Counts from 1 within the job, without gaps. Only where the service was restored from a
    back-up it leaps ahead once, so that no number is given out twice.
    """
    time: datetime
    type: (
        Literal[
            "status",
            "metrics",
            "log",
            "progress",
            "checkpoint",
            "artifact",
            "warning",
            "attempt",
            "hub",
        ]
        | str
    )


class EventPage(Answer):
    """A page of the events of all jobs."""

    data: list[Event]
    expired: bool
    """Events of jobs that ended long ago, and that would follow `after`, are not here any
    more: read them from each job's own events.
    """
    has_more: bool
    """More can be read now. With `types` a page may be empty and still have more."""
    next_after: str
    """Opaque; pass as `after` for what follows."""


class Liveness(Answer):
    """The process answers."""

    status: Literal["ok"] | str | None = None


FailureReason = (
    Literal[
        "invalid_spec",
        "invalid_data",
        "data_unavailable",
        "model_unavailable",
        "trainer_error",
        "out_of_memory",
        "diverged",
        "below_gate",
        "disk_full",
        "interrupted",
        "killed",
        "stalled",
        "start_timeout",
        "time_limit",
        "machine_lost",
        "no_capacity",
        "provisioning_failed",
        "target_misconfigured",
        "store_unavailable",
        "internal",
    ]
    | str
)
"""Why an attempt or a job ended badly; `RULES` says what follows."""


Status = (
    Literal[
        "queued",
        "provisioning",
        "running",
        "finalizing",
        "paused",
        "succeeded",
        "failed",
        "cancelled",
    ]
    | str
)
"""Where a job stands; the last three never change again."""


class Summary(Answer):
    """A job in a list; `fields=` leaves out the others."""

    backend: str | None = None
    clone_of: str | None = None
    created_at: datetime | None = None
    finished_at: datetime | None = None
    id: str
    labels: dict[str, str] | None = None
    latest_metrics: dict[str, Any] | None = None
    message: str | None = None
    name: str | None = None
    phase: str | None = None
    priority: int | None = None
    progress: dict[str, Any] | None = None
    reason: FailureReason | None = None
    retry_of: str | None = None
    started_at: datetime | None = None
    status: Status | None = None
    sweep_id: str | None = None
    target: str | None = None
    task_type: str | None = None
    updated_at: datetime | None = None
    waiting_for: str | None = None


class JobPage(Answer):
    """A page of jobs, newest first."""

    items: list[Summary]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class AttemptOut(Answer):
    """One try on one machine."""

    created_at: datetime
    devices: list[Any]
    exit_code: int | None
    finished_at: datetime | None
    id: str
    last_step: int | None
    machine: str | None
    """The host's name; its id while the host is unknown."""
    message: str | None
    number: int
    outcome: str | None
    reason: FailureReason | None
    released_at: datetime | None
    """When the machine was free again."""
    resumed_step: int | None
    started_at: datetime | None
    steps_lost: int | None
    """Steps that the next attempt had to repeat."""
    target: str
    telemetry: dict[str, Any] | None


class HubRef(Answer):
    """What of the job is on a hub, and whether more is on its way."""

    commit: str | None
    """Of the newest push that arrived."""
    kind: Literal["checkpoint", "model"] | str
    """What `state` is about."""
    message: str | None
    """Why it is not there yet."""
    pushed_at: datetime | None
    repo_id: str
    revision: str
    """The branch."""
    state: Literal["pending", "pushed", "failed", "dropped"] | str
    """`failed`: `POST /jobs/{id}/hub/retry` tries again. `dropped`: the job was cancelled."""
    step: int | None
    """Of a checkpoint."""
    url: str


class MlflowRef(Answer):
    """Where the run is found in MLflow."""

    experiment_id: str | None
    run_id: str | None
    url: str | None


class ModelRefOut(Answer):
    """The model version that the job published."""

    id: str
    name: str
    version: int


class ExternalRefs(Answer):
    """The job's traces in other systems."""

    hub: HubRef | None = None
    """Null until there is something to push."""
    mlflow: MlflowRef | None = None
    model: ModelRefOut | None = None
    storage: str
    """`s3://bucket/prefix` of everything that the job keeps."""


class Warn(Answer):
    """Something that the caller should know and that does not stop the job."""

    code: str
    message: str


class JobOut(Answer):
    """A job: what was asked for, what it became, and where it stands."""

    attempts: list[AttemptOut]
    backend: str
    cancel_requested_at: datetime | None
    clone_of: str | None
    created_at: datetime
    external_refs: ExternalRefs
    finished_at: datetime | None
    id: str
    labels: dict[str, str]
    latest_metrics: dict[str, Any] | None
    links: dict[str, str]
    max_attempts: int
    message: str | None
    name: str
    pause_requested_at: datetime | None
    """Since when it is to be paused, or is; a resume clears it."""
    phase: str | None
    priority: int
    progress: dict[str, Any] | None
    queue_position: int | None
    """1: the next one to be placed."""
    reason: FailureReason | None
    resolved: dict[str, Any]
    """With every default filled in."""
    retry_of: str | None
    spec: dict[str, Any]
    """As it was given."""
    start_from: dict[str, Any] | None
    started_at: datetime | None
    status: Status
    sweep_id: str | None = None
    """The sweep that it is a run of."""
    target: str
    task_type: str
    turn: Literal["caller", "owner", "operator"] | str | None
    """Who must act after a failure."""
    updated_at: datetime
    waiting_for: str | None
    warnings: list[Warn]


class ArtifactOut(Answer):
    """A file that the job keeps."""

    attempt_id: str | None
    created_at: datetime
    kind: str
    path: str
    sha256: str
    size: int
    url: str
    """Where it is downloaded, below this API's address."""


class ArtifactList(Answer):
    """The job's files."""

    archive: str
    """Where all of them are downloaded as one tar file."""
    items: list[ArtifactOut]


class CheckpointOut(Answer):
    """A whole checkpoint in the store."""

    attempt: int
    """Number of the attempt that wrote it."""
    attempt_id: str
    created_at: datetime
    id: str
    location: str
    """`s3://bucket/prefix` of its folder."""
    sha256: str
    """Of its manifest, which holds the sha256 of every file."""
    size: int
    """Bytes of all its files."""
    step: int


class CheckpointList(Answer):
    """The job's checkpoints."""

    items: list[CheckpointOut]


class JobEventPage(Answer):
    """A page of a job's events."""

    data: list[Event]
    has_more: bool
    next_after: int
    """Pass as `after` for what follows."""


class Series(Answer):
    """Metrics by name."""

    series: dict[str, list[tuple[int, float, datetime]]]
    """Points [step, value, time] in the order of steps. Of a step that was repeated after a
    restart, the newest value counts.
    """


class VersionOut(Answer):
    """One version of a published model."""

    base_model: str
    created_at: datetime
    id: str
    job_id: str | None
    kind: str
    """full, adapter or merged."""
    links: dict[str, str]
    location: str
    """`s3://bucket/prefix` of its folder."""
    manifest_sha256: str
    metrics: dict[str, Any]
    name: str
    size: int
    """Bytes of all its files."""
    template_hash: str | None
    """Of the chat template that it was trained with."""
    version: int


class ModelOut(Answer):
    """A model, with its newest version."""

    name: str
    newest: VersionOut
    versions: int


class ModelPage(Answer):
    """Models by name."""

    items: list[ModelOut]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class VersionPage(Answer):
    """Versions of a model, newest first."""

    items: list[VersionOut]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class FileOut(Answer):
    """A file of a model."""

    path: str
    sha256: str
    size: int
    url: str


class VersionDetail(Answer):
    """A version with its files."""

    base_model: str
    created_at: datetime
    files: list[FileOut]
    id: str
    job_id: str | None
    kind: str
    """full, adapter or merged."""
    links: dict[str, str]
    location: str
    """`s3://bucket/prefix` of its folder."""
    manifest_sha256: str
    metrics: dict[str, Any]
    name: str
    size: int
    """Bytes of all its files."""
    template_hash: str | None
    """Of the chat template that it was trained with."""
    version: int


class Interval(Answer):
    """A number that a sample tells: between `low` and `high`, and likely in the middle."""

    high: float | None
    """None: nothing tells how much more there is."""
    likely: float
    low: float


class Bounds(Answer):
    """How far the numbers of a sample may be from those of all rows."""

    method: str
    """How the bounds come about."""
    rows: Interval
    """Rows of all sources that are read."""
    sampled: int
    """Rows that were read."""
    steps: Interval | None
    """None for a task that trains nothing."""
    tokens: Interval
    """Tokens of all training rows."""
    train: Interval
    """Prepared rows to train on."""
    trained_share: Interval | None
    """None for tasks that learn one thing a row."""


class Disk(Answer):
    """Bytes that a run needs in its folder when it needs most."""

    best: int
    """The best evaluation's weights, where they are kept."""
    checkpoint: int
    """One checkpoint."""
    checkpoints: int
    """How many lie there at once: one more than are kept."""
    free: int
    model: int
    """What is published."""
    prepared: int
    total: int


class Probe(Answer):
    """What two real steps on the longest rows took, in a process of their own."""

    base_gb: float
    """The process with its libraries, before any model."""
    changed: list[str] | None = None
    """What was stepped down to, because memory ran out."""
    factor: float | None
    """Measured by predicted."""
    failed: str | None = None
    """Why there is no measure."""
    peak_gb: float | None
    """Most memory beyond the libraries' own; on a GPU what was reserved there."""


class Memory(Answer):
    """Memory of one process in GB (10⁹ bytes), by the formula that chooses the batch size. Not
    in it: the libraries themselves (about 0.6 GB of a process), evaluations and generation.
    """

    activations_gb: float
    available_gb: float | None
    """Of a GPU; None on a CPU."""
    gradients_gb: float
    logits_gb: float
    optimizer_gb: float
    parameters: int
    probe: Probe | None = None
    total_gb: float
    weights_gb: float


class Rows(Answer):
    """What became of the sources' rows. A prepared row holds several samples when it is
    packed.
    """

    cut: int
    dropped: int
    fill: float | None = None
    """Of packed rows: share of places with a token."""
    kept: int
    packed: bool | None = None
    read: int
    train: int
    """Prepared rows to train on."""
    train_samples: int
    validation: int


class Steps(Answer):
    """Optimizer steps of a whole run, by the rule that the Trainer follows."""

    accumulation: int
    """Micro-batches of a step."""
    epochs: float
    global_batch: int
    """Rows of a step: the product of the three."""
    per_device_batch: int
    """Rows of a micro-batch of one process."""
    per_epoch: int
    processes: int
    total: int


class Tokens(Answer):
    """Lengths of training samples in tokens; of several texts, the longest one's."""

    histogram: dict[str, int]
    """Upper bound of the length → samples."""
    max: int
    p50: int | None
    """Half of the samples are at most as long."""
    p95: int | None
    total: int
    trained: int | None
    """Tokens that carry loss (`mlm`: that may be asked for); None for tasks that learn one
    thing a row.
    """
    trained_share: float | None


class Notice(Answer):
    """Something that will work, but perhaps not as the user expects."""

    code: str
    message: str


class Figures(Answer):
    """What the rows tell."""

    bounds: Bounds | None = None
    """Of an estimate: how far it may be off. Null: all rows were read."""
    device: str
    """`cpu`, or how many GPUs."""
    disk: Disk
    memory: Memory
    rows: Rows
    steps: Steps | None
    """Null for a task that trains nothing."""
    tokens: Tokens
    warnings: list[Notice]
    """What the data look like they should not."""


class Machine(Answer):
    """A host that could take the job, and what the job would cost there."""

    cost_usd: float | None
    devices: list[str]
    """Names of its devices that the job could have."""
    free_devices: int
    machine: str
    """The host's name."""
    price_per_hour: float
    """In USD; hosts of one's own cost nothing."""
    reason: str | None
    """Why there is no time."""
    seconds: float | None
    """By the speed of finished jobs of the same task and model; null: there is none."""
    target: str


class PlanProblem(Answer):
    """Why there is no plan."""

    message: str
    pointer: str | None
    """The field that is to be changed, where one is."""
    reason: str


class PlanOut(Answer):
    """A plan: at first by the first rows, then by all of them."""

    created_at: datetime
    exact: bool
    """Whether `figures` are those of all rows."""
    expires_at: datetime
    figures: Figures | None
    """Null until the first rows are read."""
    finished_at: datetime | None
    id: str
    links: dict[str, str]
    machines: list[Machine]
    problem: PlanProblem | None
    resolved: dict[str, Any]
    """With every default filled in."""
    spec: dict[str, Any]
    """As it was given."""
    status: Literal["waiting", "running", "done", "failed"] | str
    waiting_for: str | None
    """Why there is nothing yet."""
    warnings: list[Warn]


class Token(Answer):
    """One token: `text` may be empty where a character needs several tokens."""

    id: int
    text: str
    trained: bool


class Part(Answer):
    """One sequence of a sample, such as `chosen`."""

    name: str
    tokens: list[Token]


class Sample(Answer):
    """A training sample as the model gets it."""

    given: dict[str, str] | None = None
    """Columns that rewards compare answers with."""
    images: list[str] | None = None
    """Each in words."""
    label: str | None = None
    """What is learned of the whole sample."""
    number: int
    """From 1, in the order of the prepared rows."""
    parts: list[Part]
    """Empty where a sample has no text."""


class PreviewOut(Answer):
    """The first training samples as the model will see them."""

    samples: list[Sample] | None
    """Null until they are read: ask again."""
    waiting_for: str | None
    """Why there is nothing yet."""
    warnings: list[Notice]


class PresetOut(Answer):
    """A preset."""

    created_at: datetime
    description: str
    name: str
    spec: dict[str, Any]
    updated_at: datetime


class PresetList(Answer):
    """A page of the project's presets, by name."""

    items: list[PresetOut]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class Readiness(Answer):
    """Whether jobs can be taken, and what does not answer, by name."""

    degraded: list[Literal["database", "broker", "store", "mlflow", "workers"] | str]
    """Jobs are taken, but they wait or are not mirrored."""
    missing: list[Literal["database", "broker", "store", "mlflow", "workers"] | str]
    """Without these nothing can be done."""
    ready: bool


class SecretOut(Answer):
    """A secret without its value."""

    created_at: datetime
    name: str
    updated_at: datetime


class SecretList(Answer):
    """The project's secrets."""

    items: list[SecretOut]


class Ticket(Answer):
    """A ticket, good for one connection within a minute."""

    expires_in: int
    """Seconds."""
    path: str = Field(repr=False)
    """Where it is good, with the ticket: for `new EventSource(…)`."""
    ticket: str = Field(repr=False)


class ModelRef(Answer):
    """A version in the registry."""

    name: str
    version: int


class Best(Answer):
    """The best run."""

    job_id: str
    model: ModelRef | None
    """What was registered of it."""
    number: int
    value: float


class Metric(Answer):
    """What the best run is told by."""

    by: Literal["final", "best"] | str | None = None
    """Its value at the end, or the best one on the way (with
    `checkpoint.load_best_model_at_end`).
    """
    goal: Literal["min", "max"] | str
    name: str
    """As in `GET /jobs/{id}/metrics`."""


class SweepSummary(Answer):
    """A sweep in a list."""

    best: Best | None
    """Once it has finished."""
    cancel_requested_at: datetime | None
    counts: dict[str, int]
    """Its runs by status; those deleted are not."""
    created_at: datetime
    finished_at: datetime | None
    id: str
    max_concurrent: int | None
    metric: Metric
    name: str
    reason: str | None
    """Why there is no best run, no model of it, a run left out, or no end yet."""
    register_best: bool
    status: Literal["running", "finished", "cancelled"] | str


class SweepPage(Answer):
    """A page of sweeps, newest first."""

    items: list[SweepSummary]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class RunOut(Answer):
    """A run of a sweep."""

    fields: dict[str, Any]
    """Those in which the runs' specs differ, by dotted name."""
    job_id: str
    name: str
    number: int
    reason: FailureReason | None
    status: (
        Literal[
            "queued",
            "provisioning",
            "running",
            "finalizing",
            "paused",
            "succeeded",
            "failed",
            "cancelled",
        ]
        | str
    )
    value: float | None
    """Of the metric: the newest while it runs, and what counts once the sweep has finished."""


class SweepOut(Answer):
    """A sweep with its runs."""

    best: Best | None
    """Once it has finished."""
    cancel_requested_at: datetime | None
    counts: dict[str, int]
    """Its runs by status; those deleted are not."""
    created_at: datetime
    finished_at: datetime | None
    id: str
    links: dict[str, str]
    max_concurrent: int | None
    metric: Metric
    name: str
    reason: str | None
    """Why there is no best run, no model of it, a run left out, or no end yet."""
    register_best: bool
    runs: list[RunOut]
    spec: dict[str, Any]
    """What its runs have in common, as it was given."""
    status: Literal["running", "finished", "cancelled"] | str


class DeviceOut(Answer):
    """A slot that one attempt at a time may hold."""

    attempt_id: str | None
    """Who holds it, when that is the caller's own job."""
    busy: bool
    held: bool
    """Kept for the next job of a project."""
    index: int
    kind: str
    memory_gb: float | None
    name: str


class WorkerOut(Answer):
    """A process of ours that says that it lives."""

    devices: list[DeviceOut]
    draining: bool
    """It gets no new attempt until the drain is taken back."""
    hand_back: bool
    """What runs there is asked to go on elsewhere."""
    hostname: str
    id: str
    info: dict[str, Any]
    kind: str
    online: bool
    seen_at: datetime
    started_at: datetime


class TargetOut(Answer):
    """A place where attempts run."""

    free_devices: int
    name: str
    queued: int
    """Jobs that wait for it."""
    running: int
    """Jobs that are on it."""
    workers: list[WorkerOut]


class TargetList(Answer):
    """All targets that are switched on."""

    items: list[TargetOut]


class FieldProblem(Answer):
    """What is wrong with one field."""

    message: str
    pointer: str
    value: str | None = None


class Problem(Answer):
    """What went wrong, for machines (`code`) and for people (`message`, `detail`)."""

    code: str
    detail: str
    """The same text as `message`."""
    errors: list[FieldProblem] | None = None
    """Each wrong field, with a JSON pointer into the body."""
    message: str
    request_id: str | None = None
    status: int
    title: str
    type: str


class UploadOut(Answer):
    """An upload on its way to be a data set."""

    created_at: datetime
    dataset_id: str | None
    """The data set that it became."""
    expires_at: datetime
    """It is gone then, unless bytes arrive before."""
    file_name: str
    id: str
    length: int
    """Bytes of the whole file."""
    links: dict[str, str]
    name: str
    offset: int
    """Bytes that are safe here; go on behind them."""
    problem: Problem | None
    """Why it was refused."""
    status: Literal["receiving", "checking", "done", "refused"] | str


class UploadPage(Answer):
    """Uploads, newest first."""

    items: list[UploadOut]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""


class WebhookOut(Answer):
    """A webhook without its secret."""

    active: bool
    created_at: datetime
    description: str
    events: list[
        Literal[
            "job.started",
            "job.succeeded",
            "job.failed",
            "job.cancelled",
            "job.paused",
            "sweep.finished",
        ]
        | str
    ]
    failures: int
    """Tries that failed since the last delivery that arrived."""
    id: str
    links: dict[str, str]
    pending: int
    """Deliveries that are still to be made."""
    tried_at: datetime | None
    """When something was last sent."""
    updated_at: datetime
    url: str


class WebhookList(Answer):
    """The project's webhooks, oldest first."""

    items: list[WebhookOut]


class WebhookWithSecret(Answer):
    """A webhook with a new secret, which is shown in this answer only."""

    active: bool
    created_at: datetime
    description: str
    events: list[
        Literal[
            "job.started",
            "job.succeeded",
            "job.failed",
            "job.cancelled",
            "job.paused",
            "sweep.finished",
        ]
        | str
    ]
    failures: int
    """Tries that failed since the last delivery that arrived."""
    id: str
    links: dict[str, str]
    pending: int
    """Deliveries that are still to be made."""
    secret: str = Field(repr=False)
    """Its deliveries are signed with it."""
    tried_at: datetime | None
    """When something was last sent."""
    updated_at: datetime
    url: str


class DeliveryOut(Answer):
    """What a webhook was told, or is to be."""

    attempts: int
    created_at: datetime
    delivered_at: datetime | None
    error: str | None
    """Why the last try failed, or why there is no further one."""
    event: str
    id: str
    """The header `X-Polar-Delivery`, the same at every try."""
    next_at: datetime | None
    """When it is tried next, while it is pending."""
    payload: dict[str, Any]
    response_status: int | None
    """What the endpoint answered last."""
    status: Literal["pending", "delivered", "failed"] | str


class DeliveryPage(Answer):
    """A page of deliveries, newest first."""

    items: list[DeliveryOut]
    next_cursor: str | None
    """Pass as `cursor` for the next page; null: end."""
