"""Who gets which devices: priority, reservation, kinds, and what the others are told."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from worker.plan import Plan, Planner, Slot, Waiting, Wish


def plan(jobs: Iterable[Waiting], hosts: Mapping[str, Sequence[Slot]]) -> Plan:
    """Plan for these jobs alone."""
    planner = Planner(hosts)
    for job in jobs:
        planner.add(job)
    return planner.result


def gpus(count: int, *, free: int | None = None, name: str = "H100") -> list[Slot]:
    free = count if free is None else free
    return [Slot(i, "cuda", name, 80.0, free=i < free) for i in range(count)]


def cpus(count: int, *, free: int | None = None) -> list[Slot]:
    free = count if free is None else free
    return [Slot(i, "cpu", "CPU", 8.0, free=i < free) for i in range(count)]


def placed(result) -> dict[str, tuple[str, list[int]]]:
    return {a.job_id: (a.worker_id, a.devices) for a in result.assignments}


def test_jobs_are_placed_in_their_order_until_nothing_is_free():
    result = plan([Waiting(x, Wish()) for x in "abcd"], {"w": cpus(2)})
    assert placed(result) == {"a": ("w", [0]), "b": ("w", [1])}
    assert result.waiting == {"c": "next in line, all devices are busy", "d": "1 job ahead"}


def test_a_large_job_reserves_what_is_free_so_that_small_ones_do_not_starve_it():
    jobs = [Waiting("large", Wish(4, "cuda")), Waiting("small", Wish(1, "cuda"))]
    result = plan(jobs, {"w": gpus(4, free=3)})
    assert placed(result) == {}
    assert result.waiting["large"] == "next in line, all devices are busy"
    assert result.waiting["small"] == "1 job ahead"
    assert placed(plan(jobs, {"w": gpus(4)})) == {"large": ("w", [0, 1, 2, 3])}


def test_a_reservation_holds_only_the_host_where_the_large_job_lacks_least():
    jobs = [Waiting("large", Wish(4, "cuda")), Waiting("small", Wish(1, "cuda"))]
    hosts = {"far": gpus(4, free=1), "near": gpus(4, free=3)}
    assert placed(plan(jobs, hosts)) == {"small": ("far", [0])}


def test_a_job_that_nobody_could_ever_run_keeps_nothing():
    jobs = [Waiting("huge", Wish(9, "cuda")), Waiting("small", Wish(1, "cuda"))]
    result = plan(jobs, {"w": gpus(8)})
    assert placed(result) == {"small": ("w", [0])}
    assert result.waiting == {"huge": "no worker online has 9 × GPU"}


def test_a_small_job_takes_the_host_with_the_least_to_spare():
    jobs = [Waiting("small", Wish(1, "cuda")), Waiting("large", Wish(4, "cuda"))]
    hosts = {"empty": gpus(4), "nearly full": gpus(4, free=1)}
    assert placed(plan(jobs, hosts)) == {
        "small": ("nearly full", [0]),
        "large": ("empty", [0, 1, 2, 3]),
    }


def test_without_a_wish_a_job_gets_a_gpu_where_there_is_any_else_the_cpu():
    assert placed(plan([Waiting("a", Wish())], {"c": cpus(1), "g": gpus(1)})) == {"a": ("g", [0])}
    assert placed(plan([Waiting("a", Wish())], {"c": cpus(1)})) == {"a": ("c", [0])}
    busy = plan([Waiting("a", Wish())], {"c": cpus(1), "g": gpus(1, free=0)})
    assert busy.waiting == {"a": "next in line, all devices are busy"}


def test_name_and_memory_are_asked_for_without_regard_to_case():
    hosts = {"a": gpus(1, name="NVIDIA A100-SXM4-40GB"), "h": gpus(1, name="NVIDIA H200")}
    assert placed(plan([Waiting("x", Wish(1, "cuda", "h200"))], hosts)) == {"x": ("h", [0])}
    result = plan([Waiting("x", Wish(2, "cuda", "L4", 24))], hosts)
    assert result.waiting == {"x": "no worker online has 2 × L4 (≥ 24 GB)"}


def test_waiting_jobs_are_told_what_is_missing():
    assert plan([Waiting("a", Wish())], {}).waiting == {"a": "no worker online"}
    assert plan([Waiting("a", Wish(1, "cuda"))], {"w": cpus(1)}).waiting == {
        "a": "no GPU worker online"
    }


def test_far_behind_in_the_queue_the_place_is_not_counted_exactly():
    result = plan([Waiting(str(i), Wish()) for i in range(30)], {"w": cpus(1, free=0)})
    assert result.waiting["20"] == "20 jobs ahead"
    assert result.waiting["29"] == "more than 20 jobs ahead"


def test_a_job_that_waits_for_another_kind_is_not_ahead():
    jobs = [Waiting("gpu", Wish(1, "cuda")), Waiting("cpu", Wish(1, "cpu"))]
    result = plan(jobs, {"g": gpus(1, free=0), "c": cpus(1, free=0)})
    assert result.waiting["cpu"] == "next in line, all devices are busy"


def test_b18_a_host_to_be_avoided_is_taken_only_where_no_other_has_the_room():
    hosts = {"bad": gpus(2, free=1), "good": gpus(4)}
    job = Waiting("a", Wish(1, "cuda"), avoid=frozenset({"bad"}))
    assert placed(plan([job], hosts)) == {"a": ("good", [0])}
    # Without that memory the fullest host that fits is taken; busy others are not waited for.
    assert placed(plan([Waiting("a", Wish(1, "cuda"))], hosts)) == {"a": ("bad", [0])}
    busy = {"bad": gpus(2, free=1), "good": gpus(4, free=0)}
    assert placed(plan([job], busy)) == {"a": ("bad", [0])}


def held(slots: list[Slot], *projects: str | None) -> list[Slot]:
    return [replace(slot, held_for=name) for slot, name in zip(slots, projects, strict=True)]


def of(project: str, job: str, count: int = 1) -> Waiting:
    return Waiting(job, Wish(count, "cuda"), project=project)


def test_what_is_held_goes_to_jobs_of_its_project_alone():
    hosts = {"w": held(gpus(1), "p")}
    result = plan([of("q", "first"), of("p", "second")], hosts)
    assert placed(result) == {"second": ("w", [0])}
    busy = "next in line, all devices are busy, or held for another project's next job"
    assert result.waiting == {"first": busy}
    assert plan([of("q", "a"), of("q", "b")], hosts).waiting == {"a": busy, "b": "1 job ahead"}


def test_a_project_s_job_takes_what_is_held_for_it_before_anything_else():
    hosts = {"full": gpus(2, free=1), "w": held(gpus(3), None, "q", "p")}
    result = plan([of("p", "mine"), of("q", "theirs"), of("p", "later")], hosts)
    assert placed(result) == {"mine": ("w", [2]), "theirs": ("w", [1]), "later": ("full", [0])}


def test_a_large_job_of_others_does_not_keep_what_is_held():
    hosts = {"w": held(gpus(3), None, None, "p")}
    result = plan([of("q", "large", 3), of("p", "small")], hosts)
    assert placed(result) == {"small": ("w", [2])}
    assert placed(plan([of("p", "large", 3)], hosts)) == {"large": ("w", [2, 0, 1])}


def test_it_is_known_for_whom_what_is_left_is():
    planner = Planner({"w": held(gpus(2), None, "p")})
    assert planner.open_to is None
    planner.add(of("q", "a"))
    assert planner.open_to == {"p"}
    planner.add(of("p", "b"))
    assert not planner.has_room


def test_a_wish_that_nothing_free_serves_is_known_to_be_hopeless():
    planner = Planner({"w": cpus(2), "g": gpus(2, free=1)})
    assert planner.has_room
    assert planner.serves(Wish(1, "cpu"))
    assert planner.serves(Wish(2, "cuda"))  # it would keep the free one
    assert not planner.serves(Wish(4, "cuda"))
    assert not planner.serves(Wish(1, "cuda", "B200"))
    planner.add(Waiting("large", Wish(2, "cuda")))
    assert not planner.serves(Wish())
    for job in "ab":
        planner.add(Waiting(job, Wish(1, "cpu")))
    assert not planner.has_room
