"""The benchmark of scale and the scale model: what they count, compare and predict."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import costs, scale, scaling
from benchmarks.costs import Window
from benchmarks.simulator import Costs
from pipeline.config.load import load
from pipeline.ledger import Ledger

pytestmark = pytest.mark.unit


def reading(learner: float, broker: float = 0.0, nbytes: float = 0.0) -> scale.Reading:
    return scale.Reading(learner, broker, 0.0, 0.0, 0.0, nbytes)


def requests(taken: int, rows: int) -> Any:
    ledger = Ledger()
    ledger.arrived(taken, taken, 0)
    return SimpleNamespace(ledger=ledger, counters={"rows": rows})


def test_both_sides_agree_when_all_was_served_once() -> None:
    first = 2 * scale.ENVIRONMENTS
    scale.account(requests(70, 70 + first), [30, 40])


@pytest.mark.parametrize(("taken", "served"), [(69, 70), (70, 71), (70, 69), (71, 70)])
def test_a_step_lost_or_served_twice_is_an_error(taken: int, served: int) -> None:
    with pytest.raises(RuntimeError, match="steps were lost"):
        scale.account(requests(taken, served + 2 * scale.ENVIRONMENTS), [30, 40])


def test_a_step_that_was_taken_and_never_delivered_is_an_error() -> None:
    found = requests(69, 70 + 2 * scale.ENVIRONMENTS)
    found.ledger.settled(undelivered=1, dropped={}, missing=0, surplus=0, inherited=0)
    with pytest.raises(RuntimeError, match="'undelivered': 1"):
        scale.account(found, [30, 40])


def test_growth_is_of_the_whole_server_side() -> None:
    few, many = scale.point(10, "process"), scale.point(1000, "process")
    found = {few: reading(2.0, 2.0), many: reading(2.0, 2.6)}
    assert scale.growth(few, many, found.__getitem__) == pytest.approx(0.15)


def test_the_line_through_the_brokers_memory() -> None:
    slope, off = scale.line([(1, 101.0), (10, 110.0), (1000, 1100.0)])
    assert slope == pytest.approx(1.0) and off == pytest.approx(0.0, abs=1e-9)
    assert scale.line([(0, 0.0), (1, 1.6), (2, 2.0)])[1] == pytest.approx(0.2)


def test_figures_of_one_round_are_of_the_same_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[scale.Point] = []
    monkeypatch.setattr(scale, "measure", lambda at, seconds: made.append(at) or reading(float(len(made))))
    rounds, at = scale.Rounds(), scale.point(4, "embedded")
    figures = [rounds.figure(lambda read: read(at).learner) for _ in range(2)]
    assert [figure(1.0) for figure in figures for _ in range(2)] == [1.0, 2.0, 1.0, 2.0]
    assert made == [at, at]


def test_metrics_have_their_documented_names_at_every_point() -> None:
    with scale.metrics() as found:
        names = [one.name for one in found]
    assert names[0] == "scale.cost_growth_10_to_1000" and len(set(names)) == len(names)
    assert {"scale.process.cost_growth_10_to_1000", "scale.process.broker_bytes_per_worker"} <= set(names)
    for workers in scale.POINTS:
        assert f"scale.workers_{workers}.learner_microseconds_per_step" in names
        assert f"scale.process.workers_{workers}.broker_microseconds_per_step" in names
    assert scale.POINTS[0] == 1 and scale.POINTS[-1] == 1000 and 1000 * scale.ENVIRONMENTS == 10_000
    assert not scale.point(16, "embedded").one_process and scale.point(64, "embedded").one_process


def test_costs_are_found_again_from_what_they_add_up_to() -> None:
    shapes = [(1, 10, 10), (2, 10, 640), (5, 50, 50), (7, 20, 320)]
    windows = [Window(b, r, n, 0, 0, 3e-4 * b + 6e-5 * r + 1e-6 * n, 0.0, 0.0, 0.0) for b, r, n in shapes]
    found = costs.solve([list(shape) for shape in shapes], "inference", windows)
    assert found == pytest.approx([3e-4, 6e-5, 1e-6], rel=1e-6)


def test_no_cost_is_negative() -> None:
    windows = [Window(0, r, n, 0, 0, r - 0.01 * n, 0.0, 0.0, 0.0) for r, n in ((1, 1), (2, 8), (5, 3))]
    found = costs.solve([[x.requests, x.rows] for x in windows], "inference", windows)
    assert found[1] == 0.0 and found[0] > 0.0


def test_the_costs_that_are_kept_are_complete_and_say_where_they_are_of() -> None:
    kept = json.loads(scaling.FILE.read_text("utf-8"))
    assert {"machine", "versions", "date", "load_average"} <= set(kept)
    for workload in scaling.ROW_BYTES:
        found = scaling.read_costs(workload)
        assert all(cost >= 0 for cost in found)
        assert min(found.environment_request + found.environment_row, found.policy_batch, found.update_batch) > 0


def test_a_setup_is_what_a_configuration_starts() -> None:
    config = load("cartpole_vtrace", ["workers.count=4", "workers.envs=8"]).config
    setup = scaling.setup_of(config, scaling.workload_of(config), 2)
    assert (setup.workers, setup.rows, setup.row_bytes, setup.broker) == (4, 4, 48, False)
    assert (setup.batch, setup.unroll, setup.training_batch, setup.capacity) == (256, 20, 32, 64)


def test_demand_is_the_rate_times_the_costs() -> None:
    case = scaling.Case("x", 4000.0, 4, 68, 10, 100, 20, 0, 1.0, 0.5)
    found = scaling.demand(case, Costs(broker_request=0.02, inference_batch=0.01, transport_byte=1e-6))
    assert found.bytes_per_second == pytest.approx(1000 * 100)
    assert found.load["workers"] == pytest.approx(500) and found.load["broker"] == pytest.approx(2.0)
    assert found.load["learner"] == pytest.approx(0.1) and found.load["transport"] == pytest.approx(0.1)
    assert found.first == "broker" and found.processes()["broker"] == 3


def test_a_prediction_is_printed() -> None:
    result = CliRunner().invoke(scaling.main, ["predict", "cartpole_vtrace", "--set", "workers.envs=8", "--cpus", "2"])
    assert result.exit_code == 0, result.output
    assert "steps/s" in result.output and "inference: busy" in result.output


def test_headline_cases_are_printed_and_documented() -> None:
    result = CliRunner().invoke(scaling.main, ["headline"])
    assert result.exit_code == 0, result.output
    documented = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")
    assert all(case.name.split(",")[0] in documented for case in scaling.CASES)
