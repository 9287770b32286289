"""`polar webhooks`: addresses that are told what happens."""

from typing import Annotated

import typer

from polar.commands.service import AsJson, print_json, service
from polar.commands.tables import print_table, when

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Addresses that are told what happens: list, add, edit, test, deliveries.",
)
_Events = Annotated[
    list[str] | None, typer.Option("--event", "-e", help="Only this event; repeatable.")
]
_Words = Annotated[str | None, typer.Option("--description", help="What it is for.")]


@app.command("list")
def list_webhooks(*, as_json: AsJson = False) -> None:
    """List webhooks, oldest first."""
    with service() as client:
        found = client.webhooks.list()
    if as_json:
        print_json(found)
        return
    rows = ((w.id, w.url, w.active, w.failures, w.pending, when(w.tried_at)) for w in found)
    print_table(("id", "url", "active", "failures", "pending", "tried"), rows)


@app.command("add")
def add(url: str, events: _Events = None, description: _Words = None) -> None:
    """Have an address told; print its id and its secret, which is shown this once."""
    with service() as client:
        made = client.webhooks.create(url, events=events, description=description)
    print(made.id)
    print(made.secret)


@app.command("show")
def show(webhook_id: str) -> None:
    """Print a webhook as JSON."""
    with service() as client:
        print_json(client.webhooks.get(webhook_id))


@app.command("edit")
def edit(
    webhook_id: str,
    url: Annotated[str | None, typer.Option(help="Its new address.")] = None,
    events: _Events = None,
    description: _Words = None,
    active: Annotated[bool | None, typer.Option(help="Off: nothing is sent or kept.")] = None,
) -> None:
    """Change a webhook."""
    with service() as client:
        made = client.webhooks.update(
            webhook_id, url=url, events=events, description=description, active=active
        )
    print(f"{made.id}: {made.url}, {'on' if made.active else 'off'}")


@app.command("new-secret")
def new_secret(webhook_id: str) -> None:
    """Sign with a new secret and print it; it is shown this once."""
    with service() as client:
        print(client.webhooks.new_secret(webhook_id).secret)


@app.command("test")
def test(webhook_id: str) -> None:
    """Have something sent to it now."""
    with service() as client:
        print(client.webhooks.test(webhook_id).id)


@app.command("deliveries")
def deliveries(webhook_id: str) -> None:
    """Print its newest deliveries as JSON."""
    with service() as client:
        print_json(client.webhooks.delivery_page(webhook_id).items)


@app.command("redeliver")
def redeliver(webhook_id: str, delivery_id: str) -> None:
    """Send a delivery once more."""
    with service() as client:
        print(client.webhooks.redeliver(webhook_id, delivery_id).id)


@app.command("delete")
def delete(webhook_id: str) -> None:
    """Tell an address nothing more."""
    with service() as client:
        client.webhooks.delete(webhook_id)
    print(f"{webhook_id}: deleted")
