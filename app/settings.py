"""Settings of the service: `POLAR_*` environment > `polar.toml` in the data folder > defaults."""

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


def default_home() -> Path:
    """The data folder: `POLAR_HOME`, or `~/.polar`."""
    return Path(os.environ.get("POLAR_HOME") or Path.home() / ".polar")


def _s3(name: str) -> AliasChoices:
    return AliasChoices(f"POLAR_S3_{name}", f"S3_{name}")


def _is_an_origin(given: str) -> str:
    if not re.fullmatch(r"https?://[^/*@?#\s]+", given):
        raise ValueError(f"{given!r} is no origin: write scheme://host or scheme://host:port")
    return given


Origin = Annotated[str, AfterValidator(_is_an_origin)]


class Settings(BaseSettings):
    """Everything that differs between installations. Durations are in seconds."""

    model_config = SettingsConfigDict(env_prefix="POLAR_", extra="ignore", populate_by_name=True)

    home: Path = Field(default_factory=default_home)
    database_url: SecretStr = SecretStr("postgresql+psycopg://polar@127.0.0.1:5432/polar")
    broker_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    host: str = "127.0.0.1"
    port: int = 8010
    auth: Literal["keys", "none"] = "keys"
    secret_key_file: Path | None = None
    gateway_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="What a gateway proves with that the users whom its headers name are checked.",
    )
    cors_origins: list[Origin] = Field(
        default_factory=list, description="Origins whose pages may call with cookies."
    )

    s3_endpoint: str | None = Field(None, validation_alias=_s3("ENDPOINT"))
    s3_public_endpoint: str | None = Field(None, validation_alias=_s3("PUBLIC_ENDPOINT"))
    s3_access_key: str = Field("", validation_alias=_s3("ACCESS_KEY"))
    s3_secret_key: SecretStr = Field(SecretStr(""), validation_alias=_s3("SECRET_KEY"))
    s3_bucket: str = Field("polar", validation_alias=_s3("BUCKET"))
    s3_region: str = Field("us-east-1", validation_alias=_s3("REGION"))
    s3_buckets: list[str] = Field(
        default_factory=list,
        description="Other buckets that jobs may read with the service's keys: `bucket` or "
        "`bucket/prefix`.",
    )
    mlflow_url: str | None = None
    hub_endpoint: str = Field(
        "https://huggingface.co",
        validation_alias=AliasChoices("POLAR_HUB_ENDPOINT", "HF_ENDPOINT"),
        description="The hub that models are pushed to.",
    )

    xgen_minio_urls: list[str] = Field(
        default_factory=list,
        description="Other addresses of the object store that XGen's forms may name.",
    )
    xgen_mlflow_urls: list[str] = Field(
        default_factory=list,
        description="Other addresses of the MLflow server that XGen's forms may name.",
    )

    prepared_days: float = Field(30.0, description="Prepared data that no job has used so long go.")
    checkpoint_days: float = Field(
        30.0, description="Checkpoints of succeeded jobs go; those of others are kept for retries."
    )
    orphan_days: float = Field(1.0, description="Objects that nothing refers to go after so long.")
    cache_max_bytes: int = Field(
        50 * 2**30, description="What a host keeps in `cache/`: what was not used longest goes."
    )

    data_folders: list[Path] = Field(
        default_factory=list, description="Folders that `folder` data sources may read."
    )
    model_folders: list[Path] = Field(
        default_factory=list, description="Folders that `folder` models may be read from."
    )
    moved_folders: dict[str, str] = Field(
        default_factory=dict,
        description="Folders of models that lie elsewhere now, former: present; specs may name the "
        "former. `polar up` sets it on a restored installation.",
    )
    outbound_allow: list[str] = Field(
        default_factory=list,
        description="Hosts and networks that trainers and webhooks may reach although they are not "
        "public.",
    )
    prepare_slots: int = Field(4, ge=1, description="Preparations at once on a host.")
    prepare_memory_gb: float = Field(
        0.0, ge=0, description="Memory of a preparation; 0: half of the host's, at least 4 GiB."
    )
    upload_max_bytes: int = 20 * 2**30
    upload_hours: float = Field(24.0, description="An upload in pieces goes without new bytes.")
    uploads_open: int = Field(20, description="Unfinished uploads in pieces of a project.")
    datasets_max: int = Field(10_000, description="Data sets of a project, all versions.")
    sweep_runs: int = Field(100, ge=1, description="Runs of a sweep.")
    fake_target: bool = Field(
        default=False, description="Admit jobs for target `fake` (drills and tests)."
    )

    threads: int = Field(32, description="Request threads of the API and its database pool.")
    store_patience: float = Field(600.0, description="How long a model waits for the store.")
    download_stall: float = Field(60.0, description="A client that takes nothing is let go.")
    rate_limit: float = Field(
        100.0, ge=0, description="Requests a second of one API key on average; 0: no limit."
    )
    rate_burst: float = Field(1000.0, ge=1, description="Requests of a key at once.")
    slow_client: float = Field(
        20.0,
        gt=0,
        description="Time for a request's head; over it a body must come with 1 KiB/s.",
    )
    heartbeat: float = Field(15.0, description="Silence on a stream before a heartbeat.")
    idempotency_hours: int = 24
    archive_days: float = Field(
        30.0, ge=0, description="Events of jobs that ended so long ago move to the object store."
    )
    log_lines: int = Field(1_000_000, ge=1, description="Log lines that are stored of a job.")
    log_megabytes: int = Field(256, ge=1, description="Log text that is stored of a job, in MiB.")

    worker_id: str | None = None
    warm_socket: Path | None = None
    cpu_slots: int = Field(1, description="Jobs at once on a host without a GPU.")
    lease: float = 60.0
    lease_renew: float = 15.0
    grace: float = Field(30.0, description="From SIGTERM to SIGKILL of a trainer.")
    poll: float = Field(1.0, description="Longest time between two looks at Postgres.")
    claim_timeout: float = Field(300.0, description="From a host's hint to its claim.")
    prepare_timeout: float = Field(86_400.0, description="For preparing a job's data.")
    fetch_timeout: float = Field(7200.0, description="For bringing a run's inputs to its host.")
    start_timeout: float = Field(600.0, description="From launch to the trainer's first event.")
    stall_timeout: float = Field(1800.0, description="Without any event from a running trainer.")
    publish_timeout: float = Field(14_400.0, description="For storing a finished model.")
    retry_base: float = Field(5.0, description="First back-off of an automatic retry.")
    worker_timeout: float = Field(60.0, description="A host unseen for so long gets no jobs.")
    hold: float = Field(
        1800.0, gt=0, le=86_400, description="A device that is held for a project goes free again."
    )
    holds: int = Field(4, ge=1, le=1000, description="Devices that a project holds at once.")
    hint_after: float = Field(20.0, description="A hint that nobody took is sent again after this.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first, then `polar.toml`."""
        del dotenv_settings, file_secret_settings
        toml = TomlConfigSettingsSource(settings_cls, default_home() / "polar.toml")
        return init_settings, env_settings, toml


@lru_cache
def get_settings() -> Settings:
    """The process's settings, read once."""
    return Settings()
