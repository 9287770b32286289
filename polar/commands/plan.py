"""`polar plan`, `preview`: what a job will do and need, and the rows as the model will see them."""

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.markup import escape

from polar.commands.composing import ConfigDir, ConfigName, Words, job_of
from polar.commands.screen import fail, out
from polar.commands.service import AsJson, Exit, plain, print_json, service
from polar.config.places import Places

_LOOK_EVERY = 0.5


def plan(
    words: Words = None,
    *,
    config_dir: ConfigDir = None,
    config_name: ConfigName = None,
    exact: Annotated[bool, typer.Option(help="Wait until all rows are read.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what a job will do and need, before it is submitted; `plan_id` pins a job to it."""
    body = job_of(words, Places(config_dir, config_name))
    with service() as client:
        made = client.plans.create(body)
        while exact and made.status in ("waiting", "running"):
            time.sleep(_LOOK_EVERY)
            made = client.plans.get(made.id)
    found = plain(made)
    if as_json:
        print_json(found)
    else:
        out.print("\n".join(_lines(found)))
    if found["problem"] is not None:
        raise fail(f"{found['problem']['reason']}: {found['problem']['message']}", Exit.REFUSED)


def preview(
    words: Words = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, max=50)] = 3,
    *,
    config_dir: ConfigDir = None,
    config_name: ConfigName = None,
    as_json: AsJson = False,
) -> None:
    """Show the first training samples as the model will see them, what is learned in ⟦ ⟧."""
    body = job_of(words, Places(config_dir, config_name))
    with service() as client:
        found = plain(client.plans.preview(body, samples=samples))
    if as_json:
        print_json(found)
        return
    if found["samples"] is None:
        raise fail(f"no sample was read yet: {found['waiting_for']}; ask again")
    for sample in found["samples"]:
        label = "" if sample["label"] is None else f": {sample['label']}"
        out.print(escape(f"sample {sample['number']}{label}"))
        for part in sample["parts"]:
            out.print(escape(f"  {part['name']}: {_marked(part['tokens'])}"))


def _lines(plan: dict[str, Any]) -> Iterator[str]:
    figures = plan["figures"]
    if figures is None:
        yield f"{plan['id']}: nothing yet ({plan['waiting_for'] or plan['status']})"
        return
    yield f"{plan['id']}: {'exact' if plan['exact'] else 'by the first rows'}"
    steps, rows, tokens = figures["steps"], figures["rows"], figures["tokens"]
    bounds = figures["bounds"] or {}
    if steps is not None:
        yield f"steps    {steps['total']:,}{_between(bounds.get('steps'))}"
    yield f"rows     {rows['train']:,} to train on{_between(bounds.get('train'))}"
    yield f"tokens   {tokens['total']:,}{_between(bounds.get('tokens'))}"
    if tokens["trained_share"] is not None:
        yield f"trained  {tokens['trained_share']:.1%} of them"
    yield f"memory   {figures['memory']['total_gb']:.2f} GB a process"
    yield f"disk     {figures['disk']['total'] / 1e9:.2f} GB"
    for machine in plan["machines"]:
        took = machine["reason"] if machine["seconds"] is None else f"{machine['seconds']:.0f} s"
        yield escape(f"machine  {machine['machine']}: {took}")
    for notice in [*plan["warnings"], *figures["warnings"]]:
        yield f"[yellow]warning:[/] {escape(notice['message'])}"


def _between(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return ""
    if interval["high"] is None:
        return " or more"
    return f" ({interval['low']:,.0f} to {interval['high']:,.0f})"


def _marked(tokens: list[dict[str, Any]]) -> str:
    said, inside = "", False
    for token in tokens:
        if token["trained"] != inside:
            said += "⟧" if inside else "⟦"
            inside = token["trained"]
        said += token["text"]
    return said + ("⟧" if inside else "")
