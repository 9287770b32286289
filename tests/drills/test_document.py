"""docs/faults.md has a row for each cell that the code defines, and for no other."""

from tests.drills import cells, document


def test_the_document_lists_exactly_the_cells():
    assert document.listed() == cells.cells()


def test_every_component_has_every_fault_that_can_be_or_a_reason():
    waves = {(wave.component, wave.fault) for wave in cells.WAVES}
    for component in (*cells.SERVICES, *cells.PROCESSES):
        assert {(component, "kill"), (component, "freeze")} <= waves
        assert (component in cells.DISKS) != (component in cells.NO_DISK)
    for service in cells.SERVICES:
        assert {(service, fault) for fault in cells.NETWORK} <= waves
    assert {fault for _, fault in waves} == set(cells.FAULTS)


def test_a_sixteenth_is_a_sixteenth_and_the_seed_chooses_it(monkeypatch):
    monkeypatch.delenv("POLAR_DRILL_SEED", raising=False)
    first = cells.sixteenth()
    assert len(first) == len(cells.COMMON_WAVES) // 16
    assert cells.sixteenth() == first
    monkeypatch.setenv("POLAR_DRILL_SEED", "1")
    assert cells.sixteenth() != first
