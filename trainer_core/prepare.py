"""Preparing data: sources in; rows to train on, a report and a ledger out.

The result is a folder that is whole when it has a manifest. It is written beside its place and
renamed, so nothing half-written stays; one process at a time prepares one folder.
"""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainer_core.data.encoders import ENCODERS, WITHOUT_TOKENIZER
from trainer_core.data.key import content_key
from trainer_core.data.ledger import Ledger
from trainer_core.data.lint import Lint
from trainer_core.data.lock import alone
from trainer_core.data.parts import of_parts
from trainer_core.data.pipeline import Pipeline
from trainer_core.data.report import (
    LEDGER,
    REPORT,
    TOKENIZER,
    PreparedReport,
    SourceRows,
    read_report,
)
from trainer_core.data.row_encoder import EncodingSetup, RowEncoder
from trainer_core.data.rows import PreparedRow
from trainer_core.data.sink import Part, histogram, lay_out_all, percentile
from trainer_core.data.sources import Source, sources_of
from trainer_core.data.staging import Staged, Staging
from trainer_core.data.template_checks import template_warnings
from trainer_core.data.templates import choose_template
from trainer_core.data.tokenizer import tokenizer_hash
from trainer_core.data.trained_tokenizer import texts_of, trained_like
from trainer_core.errors import DiskFull, OutOfMemory, TrainerError
from trainer_core.evaluation.metrics import try_out
from trainer_core.hardware import Hardware
from trainer_core.identity import spec_hash
from trainer_core.launch import read_launch, read_secrets
from trainer_core.loading import files_of, load_reader, load_tokenizer
from trainer_core.model_source import ModelSource, locate
from trainer_core.new_tokens import with_new_tokens
from trainer_core.places import make_folder, require_own
from trainer_core.publish.manifest import (
    MANIFEST,
    canonical_hash,
    make_durable,
    sync_folder,
    write_manifest,
)
from trainer_core.resolve import resolve
from trainer_core.spec import Launch, TrainSpec
from trainer_core.stop import StopSignal
from trainer_core.stop_tokens import use_eos
from trainer_core.task import evaluated, task_of
from trainer_core.task_facts import PROCESSOR

Emit = Callable[..., Any]
_TEXTS = {"text", "segments"}
"""Formats that no template is asked for."""
_TELL_SECONDS = 2.0
_OUT = "--out"
_OWN = frozenset({"train.arrow", "validation.arrow", REPORT, LEDGER, TOKENIZER, MANIFEST})
"""What a folder may hold that is prepared again."""
PREPARED = "prepared"
"""Where in a run's work folder its rows are prepared."""

__all__ = [
    "PreparedReport",
    "content_key",
    "prepare",
    "prepare_command",
    "prepared_folder",
    "read_report",
]


def prepare(
    launch: Launch,
    out: Path,
    tokenizer: Any = None,
    emit: Emit | None = None,
    secrets: Mapping[str, str] | None = None,
) -> PreparedReport:
    """Prepare the data of a launch in the folder `out`; returns its report.

    A whole folder that is already there is used as it is: name it after `content_key`. Without
    `tokenizer` the model's is loaded. `emit` gets RunEvents (`progress`, `log`, `warning`) as
    `emit(type, **data)`. Raises InvalidSpec, InvalidData, DataUnavailable, ModelUnavailable or
    DiskFull, and leaves nothing behind then. A folder in which anything else lies is refused.
    """
    launch = launch.model_copy(update={"spec": evaluated(launch.spec)})
    out = out.absolute()
    if read_report(out) is None:
        require_own(out, _OWN, _OUT)
    make_folder(out.parent, _OUT)
    with alone(out):
        report = read_report(out)
        if report is not None:
            return report
        for stale in [out, *out.parent.glob(f"{out.name}.tmp-*")]:
            shutil.rmtree(stale, ignore_errors=True)
        folder = out.with_name(f"{out.name}.tmp-{os.getpid()}")
        folder.mkdir()
        try:
            work = _Preparation(launch, folder, emit or _silent, secrets or {})
            report = work.run(tokenizer)
            folder.rename(out)
            sync_folder(out.parent)
        except MemoryError as error:
            raise OutOfMemory(
                "preparing the data needs more memory than it may have (POLAR_PREPARE_MEMORY_GB): "
                "a row of it is too large"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DiskFull(f"no room is left in {out.parent} for the prepared data") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return report


def prepared_folder(launch: Launch, secrets: Mapping[str, str], emit: Emit | None = None) -> Path:
    """Where the rows of a launch with a resolved spec lie: as it says, or prepared by now.

    That is in the work folder, under the content's key, so that nothing stale is used. Raises as
    `prepare` and `content_key` do.
    """
    if launch.paths.prepared is not None:
        return Path(launch.paths.prepared)
    source = locate(launch.spec.model, launch.paths, secrets)
    tokenizer, _ = load_reader(task_of(launch.spec).FACTS.model, source)
    key = content_key(launch, files_of(source), secrets)
    folder = Path(launch.paths.work) / PREPARED / key[:16]
    prepare(launch, folder, tokenizer, emit, secrets)
    return folder


def prepare_command(launch_path: Path, out: Path, emit: Emit | None = None) -> int:
    """`python -m trainer_core prepare LAUNCH --out DIR`: 0, or raises a TrainerError.

    Reads secrets from the descriptor that the environment names. For a process of its own:
    Transformers does not see torch in it afterwards, unless a processor of images may need it.
    """
    with StopSignal() as stop:

        def tell(kind: str, /, **data: Any) -> None:
            stop.check()
            (emit or _silent)(kind, **data)

        try:
            launch = read_launch(launch_path)
            if task_of(evaluated(launch.spec)).FACTS.model.reader != PROCESSOR:
                _import_without_torch()
            # As a run would do it: some of a task's defaults decide what the rows are.
            spec = resolve(launch.spec, Hardware()).spec
            try_out(evaluated(spec))  # here no device waits for what is broken
            launch = launch.model_copy(update={"spec": spec})
            prepare(launch, out, emit=tell, secrets=read_secrets())
        except TrainerError:
            stop.check()  # Jinja calls a signal in the middle of its work a wrong template
            raise
    return 0


def _import_without_torch() -> None:
    """Import Transformers' tokenizers without torch, whose import costs most of the time.

    Transformers looks for torch once and remembers the answer; others still find it.
    """
    if "torch" in sys.modules:
        return
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from transformers import AutoTokenizer  # noqa: F401
        from transformers.utils import is_torch_available

        is_torch_available()
    finally:
        del sys.modules["torch"]


class _Preparation:
    """One preparation in its temporary folder."""

    def __init__(
        self, launch: Launch, folder: Path, emit: Emit, secrets: Mapping[str, str]
    ) -> None:
        self._launch = launch
        self._spec = launch.spec
        self._folder = folder
        self._staging = folder / "staging"
        self._emit = emit
        self._secrets = secrets
        self._facts = task_of(launch.spec).FACTS
        self._lint = Lint()
        self._example: dict[str, Any] = {}
        self._sources: dict[str, list[Source]] = {}

    def run(self, tokenizer: Any) -> PreparedReport:
        self._staging.mkdir()
        self._sources = sources_of(self._launch, self._secrets, self._staging)
        tokenizer, processor = self._reader(tokenizer)
        tokenizer = with_new_tokens(self._fitting(tokenizer), self._spec.model)
        setup = encoding_setup(self._spec, tokenizer, processor)
        encoder = ENCODERS[self._facts.rows](setup)
        policies = self._facts.over_length
        ledger = Ledger(self._folder / LEDGER, self._spec.data, encoder.max_length, policies)
        try:
            pipeline = Pipeline(self._spec, encoder, ledger, self._tell)
            staging = Staging(self._spec, pipeline, encoder, ledger, partial(self._see, encoder))
            staged = self._stage(staging, pipeline)
            ledger.check(pipeline.counts.rows)
            parts = lay_out_all(self._spec, staged, self._folder, encoder)
            sources = self._by_source(staged, parts[0])
            self._tell_what_comes_again(sources, ledger)
        finally:
            ledger.close()
        report = self._report(pipeline, ledger, parts, (setup, encoder))
        report = report.model_copy(update={"sources": sources})
        self._finish(report)
        return report

    def _reader(self, tokenizer: Any) -> tuple[Any, Any]:
        """Tokenizer and processor; what is not given and not needed stays None."""
        sees = self._facts.model.reader == PROCESSOR
        if not sees and (tokenizer is not None or self._facts.rows in WITHOUT_TOKENIZER):
            return tokenizer, None
        source = locate(self._spec.model, self._launch.paths, self._secrets)
        return load_reader(self._facts.model, source)

    def _fitting(self, tokenizer: Any) -> Any:
        """The tokenizer, or one that is trained on the training texts where the task wants it."""
        wish = getattr(self._spec.task, "train_tokenizer", None)
        if wish is None:
            return tokenizer
        self._emit("log", level="info", message="a tokenizer is trained on the training texts")
        trained = trained_like(tokenizer, self._texts, wish.vocab_size)
        trained.save_pretrained(self._folder / TOKENIZER)
        return load_tokenizer(ModelSource(str(self._folder / TOKENIZER), "the trained tokenizer"))

    def _texts(self) -> Iterator[list[str]]:
        told = time.monotonic()
        for number, batch in enumerate(texts_of(self._sources["train"])):
            if time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                self._tell(number * len(batch))
            yield batch

    def _stage(self, staging: Staging, pipeline: Pipeline) -> dict[str, Staged]:
        """Prepared rows of all sources in staged files, `train` and `validation`."""
        staged = {}
        for part, stage in (("train", staging.train), ("validation", staging.validation)):
            if (sources := self._sources.get(part)) is None:
                continue
            staged[part] = stage(self._staging / f"{part}.arrow", sources)
            counts = staged[part].by_source
            for number, source in enumerate(sources):
                self._tell_of(source, counts[number], pipeline)
        return staged

    def _see(self, encoder: RowEncoder, row: PreparedRow) -> None:
        self._lint.see(row)
        self._example = self._example or encoder.example(row)

    def _tell_of(self, source: Source, rows: int, pipeline: Pipeline) -> None:
        found = pipeline.counts.formats.get(source.key)
        kind = "which is not read" if found is None else f"of format {found}"
        self._emit("log", level="info", message=f"{source.field}: {rows} rows {kind}")

    def _by_source(self, staged: Mapping[str, Staged], train: Part) -> dict[str, SourceRows]:
        return {
            source.key: SourceRows(
                prepared=staged[part].by_source[number],
                trained=train.by_source[number] if part == "train" else 0,
            )
            for part, sources in self._sources.items()
            for number, source in enumerate(sources)
        }

    def _tell_what_comes_again(self, sources: Mapping[str, SourceRows], ledger: Ledger) -> None:
        for source in self._sources["train"]:
            rows = sources[source.key]
            if rows.trained > rows.prepared:
                text = f"{rows.prepared} rows come {rows.trained} times in the mixture"
                ledger.mixed(source.field, source.spec.path, "repeated", text)

    def _report(
        self,
        pipeline: Pipeline,
        ledger: Ledger,
        parts: tuple[Part, Part | None],
        used: tuple[EncodingSetup, RowEncoder],
    ) -> PreparedReport:
        train, validation = parts
        setup, encoder = used
        facts = encoder.facts()
        return PreparedReport(
            rows_in=pipeline.counts.rows,
            rows_kept=train.samples + (validation.samples if validation else 0),
            rows_dropped=ledger.dropped,
            rows_cut=ledger.cut,
            samples_spread=pipeline.counts.made.by_mean(pipeline.counts.rows),
            tokens_spread=pipeline.counts.tokens.by_mean(pipeline.counts.rows),
            train_rows=train.rows,
            train_samples=train.samples,
            validation_rows=validation.rows if validation else 0,
            validation_samples=validation.samples if validation else 0,
            trained_tokens=train.trained,
            total_tokens=train.tokens,
            longest=max(train.lengths),
            histogram=histogram(train.lengths),
            length_p50=percentile(train.lengths, 0.5),
            length_p95=percentile(train.lengths, 0.95),
            formats=pipeline.counts.formats,
            max_length=encoder.max_length,
            packed=self._spec.task.is_packed,
            template_hash=setup.template.hash if setup.template else "",
            tokenizer_hash=tokenizer_hash(setup.tokenizer),
            data_hash=canonical_hash([train.hash, facts]) if facts else train.hash,
            validation_hash=validation.hash if validation else None,
            facts=facts,
            example=self._example,
            warnings=list(self._warnings(pipeline, ledger, (setup, encoder))),
        )

    def _warnings(
        self, pipeline: Pipeline, ledger: Ledger, used: tuple[EncodingSetup, RowEncoder]
    ) -> Iterator[dict[str, str]]:
        setup, encoder = used
        found = [*pipeline.counts.warnings, *self._lint.warnings()]
        if setup.template is not None and set(pipeline.counts.formats.values()) - _TEXTS:
            found += template_warnings(setup.template)
        if ledger.dropped or ledger.cut:
            text = f"{ledger.dropped} rows were dropped and {ledger.cut} cut: see {LEDGER}"
            found.append(("rows_changed", text))
        made_for = getattr(setup.tokenizer, "model_max_length", encoder.max_length)
        if encoder.max_length > made_for:
            text = (
                f"task.max_length is {encoder.max_length}, but the model is made for "
                f"{made_for} tokens"
            )
            found.append(("max_length_above_model", text))
        for code, message in found:
            self._emit("warning", code=code, message=message)
            yield {"code": code, "message": message}

    def _finish(self, report: PreparedReport) -> None:
        shutil.rmtree(self._staging)
        text = report.model_dump_json(indent=1)
        (self._folder / REPORT).write_text(text, encoding="utf-8")
        hashes = (spec_hash(self._spec), report.data_hash)
        write_manifest(self._folder, "prepared", 0, hashes)
        make_durable(self._folder)

    def _tell(self, rows: int) -> None:
        self._emit("progress", step=rows)


def encoding_setup(spec: TrainSpec, tokenizer: Any, processor: Any = None) -> EncodingSetup:
    """What an encoder of rows needs; raises InvalidSpec for a template that is none."""
    use_eos(tokenizer, spec.task.end_token)
    wanted = spec.task.template
    template = None if wanted is None else choose_template(wanted, tokenizer)
    if template is not None and processor is not None:
        template = of_parts(template)
    return EncodingSetup(spec, tokenizer, template, processor)


def _silent(kind: str, /, **data: Any) -> None:
    """No one listens."""
