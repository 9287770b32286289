"""Celery beat: sends the hints that come by the clock; queue `control` does the work."""

from collections.abc import Sequence

from celery.signals import setup_logging

from app.outbox import CONTROL_QUEUE
from app.settings import get_settings
from worker.celery_app import keep_our_logging, make_app

# Seconds between two hints. One that comes twice, late or never does no harm.
SCHEDULE = {"housekeeping": 3600.0}


def main(arguments: Sequence[str] = ()) -> int:
    """Run until SIGTERM; what was sent last is remembered in the data folder."""
    del arguments
    settings = get_settings()
    memory = settings.home / "run" / "beat-schedule"
    memory.parent.mkdir(parents=True, exist_ok=True)
    setup_logging.connect(keep_our_logging)
    app = make_app(settings)
    app.conf.beat_schedule = {
        name: {"task": name, "schedule": seconds, "options": {"queue": CONTROL_QUEUE}}
        for name, seconds in SCHEDULE.items()
    }
    app.Beat(schedule=str(memory), loglevel="INFO", quiet=True, redirect_stdouts=False).run()
    return 0
