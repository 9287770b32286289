"""The stages of one run and what they hand to each other."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer_core.backend import backend_of, require_packages
from trainer_core.best import best_of
from trainer_core.callbacks import Flow
from trainer_core.capabilities import check
from trainer_core.checkpoints import (
    Checkpointer,
    Resume,
    estimate_bytes,
    newest_checkpoint,
    open_checkpoint,
    require_space,
    resolved_in,
)
from trainer_core.context import Loaded, TrainContext, transformer_of
from trainer_core.data.parts import of_parts
from trainer_core.data.prepared import Prepared, first_rows, open_prepared
from trainer_core.data.templates import choose_template
from trainer_core.dropout import switch_off_every_dropout
from trainer_core.errors import Interrupted, InvalidSpec, OutOfMemory
from trainer_core.evaluation.base import BaseEvaluation, Evaluated
from trainer_core.evaluation.metrics import try_out
from trainer_core.evaluation.report import report_on, tell
from trainer_core.evaluation.run import evaluate, reports
from trainer_core.events import EventType
from trainer_core.gate import require_gate
from trainer_core.hardware import Hardware
from trainer_core.identity import as_begun, spec_hash, trained_fields
from trainer_core.ladder import Ladder
from trainer_core.loss_kernel import compute_at_once, is_ours
from trainer_core.machine import detect_hardware, take_share
from trainer_core.memory import values_beside
from trainer_core.model_source import local_parameters
from trainer_core.prepare import prepared_folder
from trainer_core.publish.card import CardFacts
from trainer_core.publish.model import Publication, publish_model
from trainer_core.quantization import kept_in_fp32
from trainer_core.ranks import Ranks, Seat
from trainer_core.report import Reporter
from trainer_core.resolve import resolve
from trainer_core.run_lock import package_versions, run_lock
from trainer_core.shortage import (
    WHERE,
    MemoryRanOut,
    empty,
    first_line,
    free,
    give_back,
    is_out_of_memory,
    save_finished_steps,
)
from trainer_core.spec import EvaluationTask, Launch, Paths, TrainSpec
from trainer_core.stop import StopSignal
from trainer_core.stop_tokens import stop_where_turns_end, use_eos
from trainer_core.task import evaluated, task_of
from trainer_core.watch import Watch

_BEGAN = "the checkpoint's run began with settings that cannot be had here"


class Session:
    """One attempt, stage by stage; `step` is the newest finished step."""

    def __init__(
        self,
        launch: Launch,
        secrets: Mapping[str, str],
        report: Reporter,
        stop: StopSignal,
        seat: Seat | None = None,
        *,
        calm: bool = False,
    ) -> None:
        self._launch = launch
        self._secrets = secrets
        self._report = report
        self._stop = stop
        self._seat = seat or Seat()
        self._ranks = Ranks()
        self._calm = calm
        self._work = Path(launch.paths.work)
        self._flow: Flow | None = None
        self._published_step: int | None = None
        self._resolved: dict[str, Any] = {}

    @property
    def step(self) -> int:
        """The newest finished optimizer step."""
        return self._flow.step if self._flow else 0

    def run(self) -> None:
        """Every stage; raises TrainerErrors, and Interrupted when a signal asks to stop."""
        self._report.phase("loading")
        take_share(self._launch, self._seat)
        spec = self._resolve()
        if isinstance(spec.task, EvaluationTask):
            self._measure(spec, spec.task)
            return
        data = self._open_data(spec)
        hashes = (spec_hash(spec), data.data_hash)
        self._resolved = trained_fields(spec)
        resume = self._find_checkpoint(hashes)
        self._stop.check()
        paths = self._launch.paths.model_copy(update={"prepared": str(data.folder)})
        self._join(paths, resume)
        context, model = self._train_within_memory(spec, data, hashes, resume)
        if self._ranks.leads:
            self._publish(context, model)

    def _train_within_memory(
        self, spec: TrainSpec, data: Prepared, hashes: tuple[str, str], resume: Resume | None
    ) -> tuple[TrainContext, Any]:
        """Train; where memory runs out, go on from the last step with less need of it."""
        ladder = Ladder(spec, None if resume is None else resume.state.ladder)
        while True:
            try:
                return self._train_on(ladder, data, hashes, resume)
            except MemoryRanOut as ran:
                self._step_down(ladder, ran)
                newest = ran.newest
            give_back()
            resume = resume if newest is None else open_checkpoint(newest, hashes)

    def _train_on(
        self, ladder: Ladder, data: Prepared, hashes: tuple[str, str], resume: Resume | None
    ) -> tuple[TrainContext, Any]:
        spec = ladder.spec
        compute_at_once(ladder.tokens_at_once)
        paths = self._launch.paths.model_copy(update={"prepared": str(data.folder)})
        loaded = backend_of(spec).load(spec, paths, self._secrets, data.report.facts)
        self._agree_on_ends(spec, loaded)
        if self._calm:
            switch_off_every_dropout(loaded.model)
        self._report.log(_described(loaded, data))
        self._stop.check()
        context = self._context(spec, loaded, data, hashes)
        context.flow.ladder = ladder.state
        return context, self._train(context, resume)

    def _step_down(self, ladder: Ladder, ran: MemoryRanOut) -> None:
        """Take the next rung and tell of it; raises OutOfMemory where there is none."""
        at = f"memory ran out {WHERE[ran.where]} after step {ran.step} ({ran.said})"
        if ran.where == "optimizer":
            raise OutOfMemory(
                f"{at}: the optimizer's states do not fit beside the weights, whatever the batch:"
                " train an adapter, or choose training.optim 'adamw_8bit' or 'sgd'",
                "training.optim",
            )
        evaluating = ran.where == "evaluating"
        how = ladder.lower_evaluation() if evaluating else ladder.lower(pieces=is_ours())
        if how is None:
            raise OutOfMemory(
                f"{at}, and nothing is left to give up: batches of one row"
                f"{'' if evaluating else ', activations computed again'}; lower task.max_length,"
                " choose a smaller model, or hold its base in 4 bits with quantization.bits"
            )
        self._report.warn("memory_ladder", f"{at}: {how}")

    def _join(self, paths: Paths, resume: Resume | None) -> None:
        """Connect with the other ranks, which read what this one has prepared."""
        found = None if resume is None else str(resume.folder)
        shared = paths.model_copy(update={"resume_from": found})
        self._ranks = self._seat.join(self._launch, shared)

    def _measure(self, outer: TrainSpec, task: EvaluationTask) -> None:
        """Task `evaluation`: measure a model, and perhaps another one before it, and report."""
        spec = resolve(evaluated(outer), detect_hardware(self._launch)).spec
        data = self._open_data(spec)
        if data.validation is None:
            rows = first_rows(data.train, spec.evaluation.max_samples)
            data = replace(data, validation=rows)
        base = None
        if task.baseline is not None:
            paths = self._launch.paths.model_copy(update={"model": None})
            wanted = {name: getattr(spec.model, name) for name in ("dtype", "attn_implementation")}
            other = spec.model_copy(update={"model": task.baseline.model_copy(update=wanted)})
            base = self._measured(other, data, paths)[0]
        ours, context = self._measured(spec, data, self._launch.paths)
        names = {
            "model": outer.model.name_or_path,
            "base": None if task.baseline is None else task.baseline.name_or_path,
        }
        found = report_on(self._work, context, (ours, base), names)
        tell(self._report, self._work, found, 0)

    def _measured(
        self, spec: TrainSpec, data: Prepared, paths: Paths
    ) -> tuple[Evaluated, TrainContext]:
        here = paths.model_copy(update={"prepared": str(data.folder)})
        loaded = backend_of(spec).load(spec, here, self._secrets, data.report.facts, whole=True)
        self._agree_on_ends(spec, loaded)
        context = self._context(spec, loaded, data, (spec_hash(spec), data.data_hash))
        trainer = task_of(spec).build_trainer(context)
        self._stop.check()
        try:
            trainer.evaluate()
            self._stop.check()
            return evaluate(trainer, context, context.flow.evaluated), context
        finally:
            context.checkpointer.clear_staging()  # libraries make the folder
            for model in (trainer.model, getattr(trainer, "ref_model", None)):
                if model is not None:
                    empty(model)

    def _resolve(self) -> TrainSpec:
        hardware = detect_hardware(self._launch)
        given = self._launch.spec
        if problems := check(given, hardware):
            raise InvalidSpec("; ".join(problem.message for problem in problems))
        require_packages(given)
        try_out(evaluated(given))
        parameters = local_parameters(self._launch)
        resolved = resolve(given, hardware, parameters)
        begun = self._as_begun(resolved.spec, hardware)
        if begun is not given:
            resolved = resolve(begun, hardware, parameters)
        for warning in resolved.warnings:
            self._report.warn(warning.code, warning.message)
        return resolved.spec

    def _as_begun(self, resolved: TrainSpec, hardware: Hardware) -> TrainSpec:
        """The spec with the settings of the checkpoint that is gone on from, where it is open."""
        folder, given = self._resumed_folder, self._launch.spec
        if folder is None:
            return given
        try:
            begun = as_begun(given, resolved, resolved_in(folder))
        except ValidationError as error:
            raise InvalidSpec(f"{_BEGAN}: {first_line(error)}", "paths.resume_from") from error
        if begun is not given and (problems := check(begun, hardware)):
            reasons = "; ".join(problem.message for problem in problems)
            raise InvalidSpec(f"{_BEGAN}: {reasons}", "paths.resume_from")
        return begun

    def _open_data(self, spec: TrainSpec) -> Prepared:
        launch = self._launch.model_copy(update={"spec": spec})
        folder = prepared_folder(launch, self._secrets, self._tell)
        return open_prepared(folder, spec.evaluation.max_samples)

    def _tell(self, kind: EventType, /, **data: Any) -> None:
        if kind != "progress":
            self._report.emit(kind, **data)

    def _find_checkpoint(self, hashes: tuple[str, str]) -> Resume | None:
        folder = self._resumed_folder
        return None if folder is None else open_checkpoint(folder, hashes)

    @cached_property
    def _resumed_folder(self) -> Path | None:
        """Looked for once: every file of a checkpoint is hashed for it."""
        if self._launch.spec.checkpoint.resume == "never":
            return None
        given = self._launch.paths.resume_from
        return Path(given) if given else newest_checkpoint(self._work)

    def _agree_on_ends(self, spec: TrainSpec, loaded: Loaded) -> None:
        """Publish the very template that the data was rendered with, and stop where turns end."""
        if loaded.tokenizer is None:
            return
        use_eos(loaded.tokenizer, spec.task.end_token)
        template = None
        if (wanted := spec.task.template) is not None:
            template = choose_template(wanted, loaded.tokenizer)
            loaded.tokenizer.chat_template = template.text
            if loaded.processor is not None:
                loaded.processor.chat_template = template.text
                template = of_parts(template)
        added = list(stop_where_turns_end(loaded.model, loaded.tokenizer, template))
        if added and hasattr(loaded.model, "peft_config"):
            self._report.warn(
                "stop_token",
                f"turns end with {', '.join(added)}, which the base model's generation settings do"
                " not name: an engine that serves this adapter must be told to stop there",
            )

    def _context(
        self, spec: TrainSpec, loaded: Loaded, data: Prepared, hashes: tuple[str, str]
    ) -> TrainContext:
        flow = Flow(
            spec,
            self._report,
            self._stop,
            evaluates=data.validation is not None,
            metrics=task_of(spec).FACTS.metrics,
        )
        flow.ranks = self._ranks
        flow.revision = loaded.facts.get("revision")
        flow.resolved = self._resolved
        facts = task_of(spec).FACTS
        guess = facts.guess(transformer_of(loaded.model).config)
        flow.watch = Watch(falls=facts.loss_falls, guess=guess)
        checkpointer = Checkpointer(
            self._work, hashes, spec.checkpoint.save_total_limit, self._report
        )
        checkpointer.needed_bytes = estimate_bytes(
            transformer_of(loaded.model), spec.training.optim, values_beside(spec)
        )
        flow.checkpointer = checkpointer
        flow.best = best_of(spec, self._work, keeps=self._ranks.leads)
        if spec.evaluation.compare_base:
            flow.base_evaluation = BaseEvaluation(self._work)
        self._flow = flow
        use_cpu = not self._launch.devices
        frozen = partial(
            backend_of(spec).load_frozen, spec, paths=self._launch.paths, secrets=self._secrets
        )
        judge = partial(backend_of(spec).load_judge, spec, paths=self._launch.paths)
        return TrainContext(spec, loaded, data, use_cpu, flow, checkpointer, frozen, judge)

    def _train(self, context: TrainContext, resume: Resume | None) -> Any:
        needed = context.checkpointer.needed_bytes
        require_space(self._work, needed, "a checkpoint")
        try:
            with kept_in_fp32(context.loaded.model):
                trainer = task_of(context.spec).build_trainer(context)
            self._stop.check()
            self._use(trainer, context, resume)
            context.checkpointer.settle()
        finally:
            if self._ranks.leads:
                context.checkpointer.clear_staging()
                context.checkpointer.let_go()
        return trainer.model

    def _use(self, trainer: Any, context: TrainContext, resume: Resume | None) -> None:
        """Train and evaluate; raises MemoryRanOut when all finished steps are saved."""
        flow = context.flow
        try:
            with self._stop.held():
                if resume is None:
                    self._begin(trainer, context)
                else:
                    self._go_on(trainer, flow, resume)
            if self._goes_on(flow):
                self._stop.check()
                self._take_best(trainer, flow)
                self._report_on(trainer, context)
        except (MemoryError, RuntimeError) as error:
            if self._ranks.count > 1 or not is_out_of_memory(error):
                raise
            ran = MemoryRanOut(flow.where, flow.step, first_line(error))
            free(error)
            save_finished_steps(trainer)
            ran.newest = context.checkpointer.newest
            raise ran from None

    def _goes_on(self, flow: Flow) -> bool:
        """What is left after training is done by rank 0 alone; raises Interrupted like `check`."""
        self._ranks.leave()
        if flow.stopping and self._ranks.leads:
            raise Interrupted("stopped by a signal")
        flow.ranks = Ranks()
        return self._ranks.leads

    def _begin(self, trainer: Any, context: TrainContext) -> None:
        if context.spec.evaluation.compare_base:
            trainer.evaluate()
            self._stop.check()  # before the first step there is nothing to keep
            context.flow.base = dict(context.flow.evaluated)
            self._keep_base(trainer, context)
        trainer.train()

    def _keep_base(self, trainer: Any, context: TrainContext) -> None:
        base = context.flow.base_evaluation
        if base is not None and reports(context.spec):
            self._report.phase("evaluating")
            if self._ranks.leads:
                with trainer.alone():
                    base.keep(evaluate(trainer, context, context.flow.base))
            self._ranks.meet()

    def _report_on(self, trainer: Any, context: TrainContext) -> None:
        """Evaluate what is to be published once more, row by row, against the base."""
        flow = context.flow
        if not reports(context.spec):
            return
        self._report.phase("evaluating")
        base = None if flow.base_evaluation is None else flow.base_evaluation.read()
        names = {"model": self._launch.job_name, "base": context.loaded.reference}
        found = report_on(
            self._work, context, (evaluate(trainer, context, flow.last()), base), names
        )
        tell(self._report, self._work, found, self._published_step or self.step)
        flow.last_metrics |= {f"eval_{n}": e.value for n, e in found.items() if e.value is not None}
        flow.base |= {f"eval_{n}": e.base for n, e in found.items() if e.base is not None}

    def _take_best(self, trainer: Any, flow: Flow) -> None:
        """Publish the best evaluation's weights, and say of the model what was measured then."""
        best = flow.best
        if best is None or not best.load(trainer, self.step):
            return
        flow.last_metrics |= best.measured
        self._published_step = best.step
        self._report.log(
            f"the weights of step {best.step} are published: their {best.metric}, {best.value:.6g},"
            " is the best of all evaluations"
        )

    def _go_on(self, trainer: Any, flow: Flow, resume: Resume) -> None:
        if resume.state.revision != flow.revision:
            raise InvalidSpec(
                "cannot resume: the model on the hub has changed since; set model.revision to"
                f" {resume.state.revision}, or start from scratch with checkpoint.resume: never",
                "model.revision",
            )
        flow.restore(resume.step, resume.state)
        if flow.best is not None:
            flow.best.restore(resume.state.best, resume.folder)
        if flow.base_evaluation is not None and self._ranks.leads:
            flow.base_evaluation.restore(resume.folder)
        self._report.emit("resumed", step=resume.step)
        if resume.step < total_steps(trainer) and not flow.ended_early:
            if flow.best is not None and self._ends_here(trainer, flow, resume):
                return
            trainer.args.eval_on_start = flow.evaluation_due
            trainer.train(resume_from_checkpoint=str(resume.folder))
            return
        # Nothing is left to train: `train` would make one step too many.
        trainer.restore_finished(str(resume.folder))
        if flow.evaluation_due:
            trainer.evaluate()

    def _ends_here(self, trainer: Any, flow: Flow, resume: Resume) -> bool:
        """Make an evaluation that was cut short: the loop makes a step before it looks at one."""
        if flow.evaluation_due:
            trainer.restore_finished(str(resume.folder))
            trainer.evaluate()
            self._stop.check()
        return flow.ended_early

    def _publish(self, context: TrainContext, model: Any) -> None:
        self._report.phase("publishing")
        spec, loaded = context.spec, context.loaded
        if spec.publish.gate is not None:
            require_gate(spec.publish.gate, context.flow.last_metrics, context.flow.base)
        hashes = {
            "spec": context.checkpointer.hashes[0],
            "data": context.checkpointer.hashes[1],
            "template": template_hash(loaded.tokenizer),
        }
        card = CardFacts(
            name=spec.publish.name or self._launch.job_name,
            base=loaded.reference,
            kind="adapter" if spec.adapts else "full",
            steps=self._published_step or self.step,
            metrics=context.flow.last_metrics,
            report=context.data.report.model_dump(),
            template_hash=hashes["template"],
            versions=package_versions(),
        )
        base = {"reference": loaded.reference, **loaded.facts}
        lock = run_lock(spec, hashes, base, use_cpu=context.use_cpu)
        hashes_of_both = context.checkpointer.hashes
        complete = partial(task_of(spec).FACTS.model.complete, model)
        publication = Publication(spec, card, lock, hashes_of_both, complete)
        publish_model(self._work, transformer_of(model), loaded, publication, self._report)


def _described(loaded: Loaded, data: Prepared) -> str:
    parameters = [(p.numel(), p.requires_grad) for p in loaded.model.parameters()]
    trained = sum(count for count, is_trained in parameters if is_trained)
    return (
        f"{loaded.facts['architecture']}: {trained:,} of {sum(n for n, _ in parameters):,}"
        f" parameters are trained on {data.report.trained_tokens:,} tokens in"
        f" {len(data.train):,} rows"
    )


def total_steps(trainer: Any) -> int:
    """Optimizer steps of the whole run, as the Trainer plans them."""
    batches = trainer.get_train_dataloader()
    return int(trainer.set_initial_training_values(trainer.args, batches)[-1])


def template_hash(tokenizer: Any) -> str | None:
    """sha256 of the chat template that the published tokenizer carries."""
    template = getattr(tokenizer, "chat_template", None)
    return hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else None
