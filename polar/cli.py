"""The `polar` command: the table of its subcommands."""

import typer

from polar.commands import backup, jobs, join, plan, sample, stack, worker
from polar.commands.env import env
from polar.commands.verify import verify
from polar.doctor import doctor

app = typer.Typer(
    name="polar",
    help="Fine-tune models: run the service here, submit jobs, watch them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(stack.up)
app.command()(stack.down)
app.command()(stack.status)
app.command()(stack.logs)
app.command()(doctor)
app.command()(env)
app.command()(backup.backup)
app.command()(backup.restore)
app.command(name="run-sample")(sample.run_sample)
app.command()(verify)
app.command()(plan.plan)
app.command()(plan.preview)
app.command()(jobs.submit)
app.command(name="jobs")(jobs.list_jobs)
app.command()(jobs.watch)
app.command()(jobs.cancel)
app.command()(jobs.pause)
app.command()(jobs.resume)
worker.app.command()(join.join)
worker.app.command(name="addresses")(join.print_addresses)
app.add_typer(worker.app, name="worker")


def main() -> None:
    """Run the command line."""
    app()
