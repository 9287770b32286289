"""The faults: how each begins, and how each ends."""

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import psycopg
import redis

from polar.stack.state import running_state
from tests.drills.cells import DISKS, NETWORK
from tests.drills.cells import Wave as Kind
from tests.drills.stack import SCALE, DrillWorld
from tests.drills.wave import Wave
from tests.services import wait_until

MINUTE = 60 / SCALE
# A kill comes somewhere in the first moments after everything was let go.
LONGEST_LEAD = 0.3


def strike(world: DrillWorld, kind: Kind, wave: Wave, chance: random.Random) -> None:
    """Bring the fault about, with all jobs of the wave in their moments, and end it."""
    if kind.component == "host":  # its clock was wrong all along
        wave.let_go()
        return
    if kind.fault in ("kill", "reset", "failover", "flush"):
        wave.let_go()
        time.sleep(chance.uniform(0, LONGEST_LEAD))
        _AT_ONCE[kind.fault](world, kind.component, wave)
        return
    begin, end = _lasting(world, kind, wave)
    begin()
    try:
        wave.let_go()
        time.sleep(MINUTE)
    finally:
        end()


# -- at once ------------------------------------------------------------------------------------


def _kill(world: DrillWorld, component: str, wave: Wave) -> None:
    for process in _processes(world, component, wave):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _reset(world: DrillWorld, component: str, wave: Wave) -> None:
    del wave
    world.proxies[component].begin("reset")


def _failover(world: DrillWorld, component: str, wave: Wave) -> None:
    """Stop in order, connections dropped (Postgres: SIGINT), and come back."""
    del wave
    process = _main_process(world, component)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: _is_back(world, component, process.pid), timeout=60, every=0.1)


def _is_back(world: DrillWorld, component: str, before: int) -> bool:
    state = running_state(world.home)
    assert state is not None
    now = state.processes[component]
    return now.condition == "ready" and now.pid != before


def _flush(world: DrillWorld, component: str, wave: Wave) -> None:
    del component, wave
    with redis.Redis.from_url(world.valkey().url) as client:
        client.flushall()


_AT_ONCE: dict[str, Callable[[DrillWorld, str, Wave], None]] = {
    "kill": _kill,
    "reset": _reset,
    "failover": _failover,
    "flush": _flush,
}


# -- for a while --------------------------------------------------------------------------------

Action = Callable[[], None]


def _lasting(world: DrillWorld, kind: Kind, wave: Wave) -> tuple[Action, Action]:
    if kind.fault == "freeze":
        return _freeze(world, kind.component, wave)
    if kind.fault in NETWORK:
        proxy = world.proxies[kind.component]
        return lambda: proxy.begin(kind.fault), proxy.end  # type: ignore[arg-type]
    if kind.fault == "disk_full":
        return _disk_full(world, kind.component)
    return {"hint_twice": _twice, "hint_late": _late, "hint_never": _never}[kind.fault](world, wave)


def _freeze(world: DrillWorld, component: str, wave: Wave) -> tuple[Action, Action]:
    if component in ("supervisor", "trainer"):
        frozen = _processes(world, component, wave)
        # They are held in their moments already: those stay as they are.
        wave.held.processes = [each for each in wave.held.processes if each not in frozen]
    else:
        main = _main_process(world, component)
        frozen = [main, *main.children(recursive=True)]
        if component == "worker":
            frozen = [main]  # its supervisors are components of their own

    def begin() -> None:
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def end() -> None:
        for process in frozen:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    return begin, end


def _disk_full(world: DrillWorld, component: str) -> tuple[Action, Action]:
    ballast = world.inside(DISKS[component]) / "ballast"

    def begin() -> None:
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(2**16)):  # until nothing more goes in
                pass

    def end() -> None:
        ballast.unlink(missing_ok=True)
        if component == "s3":  # its index takes nothing more until it is started again
            world.process(component).kill()

    return begin, end


_COPIES = """
    INSERT INTO outbox (project_id, queue, handler, args)
    SELECT project_id, queue, handler, args FROM (
        SELECT a.project_id, 'host.' || a.worker_id AS queue, 'run' AS handler,
            jsonb_build_array(a.id) AS args
        FROM attempts a WHERE a.job_id = ANY(%(jobs)s)
        UNION ALL
        SELECT j.project_id, 'prepare', 'prepare', jsonb_build_array(j.id)
        FROM jobs j WHERE j.id = ANY(%(jobs)s)
    ) AS hints, generate_series(1, 3)
"""


def _twice(world: DrillWorld, wave: Wave) -> tuple[Action, Action]:
    """Every hint that there was comes three times more, now and when the minute is over."""

    def again() -> None:
        jobs = [case.job_id for case in wave.cases.values()]
        with _database(world) as connection:
            connection.execute(_COPIES, {"jobs": jobs})

    return again, again


def _database(world: DrillWorld) -> psycopg.Connection[tuple[object, ...]]:
    ports = world.home.settings()["ports"]
    assert isinstance(ports, dict)
    password = (world.home.secrets / "postgres").read_text().strip()
    return psycopg.connect(
        host="127.0.0.1", port=ports["postgres"], user="polar", password=password, dbname="polar"
    )


def _late(world: DrillWorld, wave: Wave) -> tuple[Action, Action]:
    """The hints of the first moments are taken out of the broker, and come back at the end."""
    begin, collect = _intercept(world, wave)
    kept: dict[bytes, list[bytes]] = {}

    def hold_back() -> None:
        begin()
        kept.update(collect())

    def deliver() -> None:
        with redis.Redis.from_url(world.valkey().url) as client:
            for queue, messages in kept.items():
                client.lpush(queue, *messages)

    return hold_back, deliver


def _never(world: DrillWorld, wave: Wave) -> tuple[Action, Action]:
    """The hints of the first moments are taken out of the broker for good."""
    begin, collect = _intercept(world, wave)

    def lose() -> None:
        begin()
        collect()

    return lose, lambda: None


def _intercept(
    world: DrillWorld, wave: Wave
) -> tuple[Action, Callable[[], dict[bytes, list[bytes]]]]:
    """Hold the readers of the queues still until hints have come, and take these away.

    The jobs that are let go meanwhile make hints: a submitted job one for its preparation, a
    device that becomes free one for the attempt that gets it.
    """
    readers = [_main_process(world, name) for name in ("prepare", "worker")]

    def begin() -> None:
        for reader in readers:
            reader.suspend()
        with redis.Redis.from_url(world.valkey().url) as client:
            for waiting in client.client_list():  # a hint would go to who waits, though it sleeps
                if waiting["cmd"] == "brpop":
                    client.client_kill(waiting["addr"])
        wave.let_go()

    def collect() -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        try:
            with redis.Redis.from_url(world.valkey().url) as client:
                for queue in _queues(world):
                    wait_until(lambda queue=queue: client.llen(queue), timeout=60)  # type: ignore[misc]
                    found[queue] = client.lrange(queue, 0, -1)  # type: ignore[assignment]
                    client.delete(queue)
        finally:
            for reader in readers:
                reader.resume()
        return found

    return begin, collect


def _queues(world: DrillWorld) -> list[bytes]:
    host = world.sql("SELECT id FROM workers WHERE kind = 'host'")[0][0]
    return [b"prepare", f"host.{host}".encode()]


# -- processes ----------------------------------------------------------------------------------


def _main_process(world: DrillWorld, component: str) -> psutil.Process:
    return world.process(component)


def _processes(world: DrillWorld, component: str, wave: Wave) -> list[psutil.Process]:
    if component == "supervisor":
        return wave.supervisors()
    if component == "trainer":
        return wave.trainers()
    return [_main_process(world, component)]
