"""The `polar` command: the table of its subcommands."""

import typer

from polar.lazy import Row, group_of

_JOBS, _THINGS, _HERE = "Jobs", "What a service keeps", "This machine"

ROWS = (
    Row(
        "train",
        "polar.commands.train:train",
        "Train here, without any service: from options, a spec's file and overrides.",
        _HERE,
    ),
    Row(
        "try",
        "polar.commands.trying:try_model",
        "Chat with a model, have it label texts or images, or compare two texts by it.",
        _HERE,
    ),
    Row("submit", "polar.commands.submit:submit", "Submit a job and print its id.", _JOBS),
    Row(
        "plan",
        "polar.commands.plan:plan",
        "Say what a job will do and need, before it is submitted; `plan_id` pins a job to it.",
        _JOBS,
    ),
    Row(
        "preview",
        "polar.commands.plan:preview",
        "Show the first training samples as the model will see them, what is learned in ⟦ ⟧.",
        _JOBS,
    ),
    Row("list", "polar.commands.jobs:list_jobs", "List the newest jobs.", _JOBS),
    Row(
        "status",
        "polar.commands.looking:status",
        "Say where a job stands; without one, show every process of the stack here.",
        _JOBS,
    ),
    Row(
        "watch",
        "polar.commands.watching:watch",
        "Watch a job until it ends or is paused; the exit code says how.",
        _JOBS,
    ),
    Row(
        "replay",
        "polar.commands.watching:replay",
        "Print again what has happened to a job, from the start; with --json one event a line.",
        _JOBS,
    ),
    Row(
        "events",
        "polar.commands.watching:events",
        "Follow what happens to all jobs, until Ctrl-C; with --json one event a line.",
        _JOBS,
    ),
    Row(
        "logs",
        "polar.commands.looking:logs",
        "Show what a job logged, or what the processes here wrote.",
        _JOBS,
    ),
    Row(
        "metrics",
        "polar.commands.looking:metrics",
        "Show what a job measured: the first and last value of each series, and its curve.",
        _JOBS,
    ),
    Row(
        "checkpoints",
        "polar.commands.looking:checkpoints",
        "List a job's checkpoints, the one to resume from first.",
        _JOBS,
    ),
    Row("cancel", "polar.commands.jobs:cancel", "Cancel a job; asking again is fine.", _JOBS),
    Row(
        "pause",
        "polar.commands.jobs:pause",
        "Pause a job: it writes a checkpoint and frees its machine; asking again is fine.",
        _JOBS,
    ),
    Row(
        "resume",
        "polar.commands.jobs:resume",
        "Resume a paused job, or take a pause back; asking again is fine.",
        _JOBS,
    ),
    Row(
        "retry",
        "polar.commands.jobs:retry",
        "Try a job that ended again, as a new one; print its id.",
        _JOBS,
    ),
    Row(
        "clone",
        "polar.commands.jobs:clone",
        "Submit a job's spec again, with changes; print the new job's id.",
        _JOBS,
    ),
    Row("edit", "polar.commands.jobs:edit", "Change a job's name, labels or priority.", _JOBS),
    Row(
        "push",
        "polar.commands.jobs:push",
        "Have what did not reach the hub pushed again.",
        _JOBS,
    ),
    Row("delete", "polar.commands.jobs:delete", "Delete a job that has ended.", _JOBS),
    Row(
        "sweeps",
        "polar.commands.sweeps:sweeps",
        "One spec with some fields varied: submit, list, show, cancel, compare.",
        _JOBS,
    ),
    Row(
        "compare",
        "polar.commands.sweeps:compare",
        "Print jobs side by side: what differs in their specs, and their metrics.",
        _JOBS,
    ),
    Row(
        "presets",
        "polar.commands.sweeps:presets",
        "Parts of specs that jobs name: list, show, set, delete.",
        _THINGS,
    ),
    Row(
        "datasets",
        "polar.commands.things:datasets",
        "Data sets: list, add, show, preview, delete.",
        _THINGS,
    ),
    Row(
        "models",
        "polar.commands.things:models",
        "Published models: list, versions, show, download, delete.",
        _THINGS,
    ),
    Row(
        "artifacts",
        "polar.commands.things:artifacts",
        "What a job keeps: list and download.",
        _THINGS,
    ),
    Row("keys", "polar.commands.things:keys", "API keys: list, create, revoke.", _THINGS),
    Row(
        "secrets",
        "polar.commands.things:secrets",
        "Secrets that specs name: list, set, delete; values are never shown.",
        _THINGS,
    ),
    Row(
        "webhooks",
        "polar.commands.webhooks:app",
        "Addresses that are told what happens: list, add, edit, test, deliveries.",
        _THINGS,
    ),
    Row(
        "targets",
        "polar.commands.things:targets",
        "List the places where jobs run, with their hosts.",
        _THINGS,
    ),
    Row(
        "capabilities",
        "polar.commands.things:capabilities",
        "Say what can be combined in a job.",
        _THINGS,
    ),
    Row(
        "health",
        "polar.commands.api:health",
        "Say whether the service lives and can take jobs; exit code 7 when not.",
        _THINGS,
    ),
    Row(
        "api",
        "polar.commands.api:api",
        "Call the API and print what it answers, for what has no command of its own.",
        _THINGS,
    ),
    Row(
        "up",
        "polar.commands.stack:up",
        "Start the database, the broker, the store and the service in one data folder.",
        _HERE,
    ),
    Row(
        "down",
        "polar.commands.stack:down",
        "Stop the stack in order: running jobs write a checkpoint first.",
        _HERE,
    ),
    Row(
        "doctor",
        "polar.doctor:doctor",
        "Say what is installed, reachable and usable, and what to do about what is not.",
        _HERE,
    ),
    Row(
        "env",
        "polar.commands.env:env",
        'Print exports of POLAR_URL, POLAR_API_KEY and POLAR_HOME: `eval "$(polar env)"`.',
        _HERE,
    ),
    Row(
        "backup",
        "polar.commands.backup:backup",
        "Take a back-up of this installation while it works: database, objects, MLflow, secrets.",
        _HERE,
    ),
    Row(
        "restore",
        "polar.commands.backup:restore",
        "Check a back-up and restore it into an empty folder, for `polar up` to go on with.",
        _HERE,
    ),
    Row(
        "run-sample",
        "polar.commands.sample:run_sample",
        "Fine-tune a small real model on the questions of an online shop, and show what it "
        "learned.",
        _HERE,
    ),
    Row(
        "verify",
        "polar.commands.verify:verify",
        "Train a sample of a spec's data in pairs of ways that must agree; exit code 1: not all "
        "do.",
        _HERE,
    ),
    Row("worker", "polar.commands.worker:app", "Hosts that run the jobs.", _HERE),
)

app = typer.Typer(
    name="polar",
    cls=group_of(ROWS),
    help="Fine-tune models: run the service here, submit jobs, watch them.",
    no_args_is_help=True,
    rich_markup_mode=None,  # half of the time of `polar --help` went to frames around it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def polar() -> None:
    """Fine-tune models: run the service here, submit jobs, watch them."""


def main() -> None:
    """Run the command line."""
    app(prog_name="polar")
