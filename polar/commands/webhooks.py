"""`polar webhooks`: addresses that are told what happens."""

from typing import Annotated

import typer

from polar.commands.service import AsJson, print_json, service, tell
from polar.commands.tables import print_table, when
from polar.sdk.answers import DeliveryOut

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
def add(
    url: str, events: _Events = None, description: _Words = None, *, as_json: AsJson = False
) -> None:
    """Have an address told; print its id and its secret, which is shown this once."""
    with service() as client:
        made = client.webhooks.create(url, events=events, description=description)
    if as_json:
        print_json(made)
        return
    print(made.id)
    print(made.secret)


@app.command("show")
def show(webhook_id: str, *, as_json: AsJson = False) -> None:
    """Say what is known of a webhook."""
    with service() as client:
        found = client.webhooks.get(webhook_id)
    if as_json:
        print_json(found)
        return
    facts = (
        ("url", found.url),
        ("events", ", ".join(found.events)),
        ("description", found.description),
        ("active", found.active),
        ("pending", found.pending),
        ("failures", found.failures),
        ("tried", when(found.tried_at)),
    )
    print_table((found.id, ""), facts)


@app.command("edit")
def edit(
    webhook_id: str,
    url: Annotated[str | None, typer.Option(help="Its new address.")] = None,
    events: _Events = None,
    description: _Words = None,
    active: Annotated[bool | None, typer.Option(help="Off: nothing is sent or kept.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Change a webhook."""
    with service() as client:
        made = client.webhooks.update(
            webhook_id, url=url, events=events, description=description, active=active
        )
    if as_json:
        print_json(made)
    else:
        print(f"{made.id}: {made.url}, {'on' if made.active else 'off'}")


@app.command("new-secret")
def new_secret(webhook_id: str, *, as_json: AsJson = False) -> None:
    """Sign with a new secret and print it; it is shown this once."""
    with service() as client:
        made = client.webhooks.new_secret(webhook_id)
    if as_json:
        print_json(made)
    else:
        print(made.secret)


@app.command("test")
def send_test(webhook_id: str, *, as_json: AsJson = False) -> None:
    """Have something sent to it now; print the delivery's id."""
    with service() as client:
        made = client.webhooks.test(webhook_id)
    _tell(made, as_json=as_json)


@app.command("deliveries")
def deliveries(webhook_id: str, *, as_json: AsJson = False) -> None:
    """List its newest deliveries."""
    with service() as client:
        found = client.webhooks.delivery_page(webhook_id).items
    if as_json:
        print_json(found)
        return
    rows = (
        (d.id, d.event, d.status, d.attempts, d.response_status, when(d.created_at), d.error)
        for d in found
    )
    print_table(("id", "event", "status", "attempts", "answer", "created", "error"), rows)


@app.command("redeliver")
def redeliver(webhook_id: str, delivery_id: str, *, as_json: AsJson = False) -> None:
    """Send a delivery once more."""
    with service() as client:
        made = client.webhooks.redeliver(webhook_id, delivery_id)
    _tell(made, as_json=as_json)


def _tell(delivery: DeliveryOut, *, as_json: bool) -> None:
    if as_json:
        print_json(delivery)
    else:
        print(delivery.id)


@app.command("delete")
def delete(webhook_id: str, *, as_json: AsJson = False) -> None:
    """Tell an address nothing more."""
    with service() as client:
        client.webhooks.delete(webhook_id)
    tell(f"{webhook_id}: deleted", as_json=as_json, id=webhook_id, deleted=True)
