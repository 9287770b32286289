"""`Launch`: a spec, and where one run of it reads and writes."""

from typing import Any

from pydantic import Field

from trainer_core.hardware import Hardware
from trainer_core.spec.base import Strict
from trainer_core.spec.train import TrainSpec


class Paths(Strict):
    """Where a run reads and writes; all on the machine that it runs on."""

    work: str = Field(description="The attempt's folder.")
    prepared: str | None = Field(None, description="Prepared data; None: prepare first.")
    model: str | None = Field(None, description="Local folder of the model, already fetched.")
    data: dict[str, str] = Field(
        default_factory=dict,
        description="Sources already fetched: `train/0`, `validation/1` → local file or folder.",
    )
    resume_from: str | None = Field(None, description="A checkpoint folder with a manifest.")
    data_folders: list[str] | None = Field(
        None, description="Folders that `folder` sources may read; None: any (a user's own shell)."
    )
    model_folders: list[str] | None = None
    moved: dict[str, str] = Field(
        default_factory=dict,
        description="Folders of models that lie elsewhere now, by former place.",
    )


class LentObject(Strict):
    """One object of a store: its name below the source, its bytes, and what tells its content."""

    name: str
    size: int = Field(ge=0)
    version: str


class LentSource(Strict):
    """What a source consists of; `alone`: one object, not what lies below an address."""

    alone: bool
    objects: list[LentObject] = Field(min_length=1)


class Launch(Strict):
    """Everything that one run of the trainer needs; `launch.json` in the attempt's folder."""

    attempt_id: str
    job_id: str
    job_name: str
    number: int = Field(1, ge=1, description="1 for a job's first attempt.")
    spec: TrainSpec
    paths: Paths
    threads: int | None = Field(None, ge=1, description="CPU threads reserved for the run.")
    devices: list[int | str] = Field(
        default_factory=list,
        description="CUDA devices by number or UUID, as CUDA_VISIBLE_DEVICES has them; empty: CPU.",
    )
    labels: dict[str, Any] = Field(default_factory=dict)
    lent: dict[str, LentSource] = Field(
        default_factory=dict,
        description="Sources that are read where they lie, as far as the run goes: `train/0` → "
        "objects, whose bytes whoever launched the run gives (`trainer_core/data/lent.py`).",
    )
    hardware: Hardware | None = Field(
        None, description="What a plan is made for, where that is another machine than this one."
    )
    known_rows: dict[str, int] = Field(
        default_factory=dict,
        description="Rows of sources that were counted before: `train/0` → how many.",
    )
