"""What a plan and a preview say; light, so that the service can speak of them."""

from pydantic import BaseModel, Field


class Steps(BaseModel):
    """Optimizer steps of a whole run, by the rule that the Trainer follows."""

    per_device_batch: int = Field(description="Rows of a micro-batch of one process.")
    accumulation: int = Field(description="Micro-batches of a step.")
    processes: int
    global_batch: int = Field(description="Rows of a step: the product of the three.")
    per_epoch: int
    epochs: float
    total: int


class Rows(BaseModel):
    """What became of the sources' rows. A prepared row holds several samples when it is packed."""

    read: int
    kept: int
    dropped: int
    cut: int
    train: int = Field(description="Prepared rows to train on.")
    train_samples: int
    validation: int
    packed: bool = False
    fill: float | None = Field(None, description="Of packed rows: share of places with a token.")


class Tokens(BaseModel):
    """Lengths of training samples in tokens; of several texts, the longest one's."""

    total: int
    trained: int | None = Field(
        description="Tokens that carry loss (`mlm`: that may be asked for); None for tasks that "
        "learn one thing a row."
    )
    trained_share: float | None
    p50: int | None = Field(description="Half of the samples are at most as long.")
    p95: int | None
    max: int
    histogram: dict[str, int] = Field(description="Upper bound of the length → samples.")


class Probe(BaseModel):
    """What two real steps on the longest rows took, in a process of their own."""

    peak_gb: float | None = Field(
        description="Most memory beyond the libraries' own; on a GPU what was reserved there."
    )
    base_gb: float = Field(description="The process with its libraries, before any model.")
    factor: float | None = Field(description="Measured by predicted.")
    changed: list[str] = Field(
        default_factory=list, description="What was stepped down to, because memory ran out."
    )
    failed: str | None = Field(None, description="Why there is no measure.")


class Memory(BaseModel):
    """Memory of one process in GB (10⁹ bytes), by the formula that chooses the batch size.

    Not in it: the libraries themselves (about 0.6 GB of a process), evaluations and generation.
    """

    parameters: int
    weights_gb: float
    gradients_gb: float
    optimizer_gb: float
    activations_gb: float
    logits_gb: float
    total_gb: float
    available_gb: float | None = Field(description="Of a GPU; None on a CPU.")
    probe: Probe | None = None


class Disk(BaseModel):
    """Bytes that a run needs in its folder when it needs most."""

    prepared: int
    checkpoint: int = Field(description="One checkpoint.")
    checkpoints: int = Field(description="How many lie there at once: one more than are kept.")
    best: int = Field(description="The best evaluation's weights, where they are kept.")
    model: int = Field(description="What is published.")
    total: int
    free: int


class Token(BaseModel):
    """One token: `text` may be empty where a character needs several tokens."""

    id: int
    text: str
    trained: bool


class Part(BaseModel):
    """One sequence of a sample, such as `chosen`."""

    name: str
    tokens: list[Token]


class Sample(BaseModel):
    """A training sample as the model gets it."""

    number: int = Field(description="From 1, in the order of the prepared rows.")
    parts: list[Part] = Field(description="Empty where a sample has no text.")
    label: str | None = Field(None, description="What is learned of the whole sample.")
    images: list[str] = Field(default_factory=list, description="Each in words.")
    given: dict[str, str] = Field(
        default_factory=dict, description="Columns that rewards compare answers with."
    )


class Notice(BaseModel):
    """Something that will work, but perhaps not as the user expects."""

    code: str
    message: str


class Plan(BaseModel):
    """What a run of a spec will do and need on this machine."""

    task: str
    model: str
    device: str = Field(description="`cpu`, or how many GPUs.")
    steps: Steps | None = Field(description="None for a task that trains nothing.")
    rows: Rows
    tokens: Tokens
    memory: Memory
    disk: Disk
    warnings: list[Notice]
    samples: list[Sample]


class Interval(BaseModel):
    """A number that a sample tells: between `low` and `high`, and likely in the middle."""

    low: float
    likely: float
    high: float | None = Field(description="None: nothing tells how much more there is.")


class Bounds(BaseModel):
    """How far the numbers of a sample may be from those of all rows."""

    sampled: int = Field(description="Rows that were read.")
    rows: Interval = Field(description="Rows of all sources that are read.")
    train: Interval = Field(description="Prepared rows to train on.")
    tokens: Interval = Field(description="Tokens of all training rows.")
    trained_share: Interval | None = Field(description="None for tasks that learn one thing a row.")
    steps: Interval | None = Field(description="None for a task that trains nothing.")
    method: str = Field(description="How the bounds come about.")


class Estimate(Plan):
    """A plan by the first rows of each source; its numbers are the likely ones of `bounds`."""

    bounds: Bounds
