"""job.json: it reads back as written, and loader, units, stages and pipeline take it."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.job import RANKS, JobRank, loss, make_job, make_step, sleeping_model, write_job
from benchmarks.runtime.rank_processes import RankProcesses
from counterpoise import Balance
from counterpoise.balancer import PlanConfig
from counterpoise.sched.planners.job.plan import BatchChoice, JobPlan, ScheduleChoice, Sizes
from counterpoise.sched.planners.job.planner import priced_plan
from counterpoise.sched.planners.job.pricing import Pricer
from counterpoise.sched.planners.job.schema import (
    JobFile,
    dump_job,
    job_file,
    read_job,
    read_stages,
)
from counterpoise.sched.planners.orchestration.units import Unit
from counterpoise.sched.planners.stage_split import dump_split, make_split
from counterpoise.sched.runtime import Units
from counterpoise.sched.shapes import ParallelLayout, step
from counterpoise.sched.simulation.cost_profile import profile_costs
from counterpoise.sched.simulation.simulator import simulate
from tests.sched.planners.job.random_jobs import a_job, every_plan


def some_plans(seed: int) -> tuple[Pricer, list[JobPlan]]:
    """Return plans of a job, one of each placement and schedule."""
    pricer = Pricer(a_job(seed))
    found = {(p[0], p[2]): JobPlan(*p) for p in every_plan(pricer, 1)}
    return pricer, list(found.values())


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_written_reads_back_and_has_the_plans_step(seed: int, tmp_path: Path) -> None:
    pricer, plans = some_plans(seed)
    for plan in plans:
        found = priced_plan(pricer, plan)
        made = job_file(pricer, found, {})
        (tmp_path / "job.json").write_text(json.dumps(dump_job(made)))
        read = read_job(tmp_path / "job.json")
        assert read == made
        assert read_stages(tmp_path / "job.json").layers == sum(plan.stages)
        # Costs are linear in what microbatches hold, so the file's step is the plan's, but for
        # senders that wait for a largest message.
        if plan.placement in ("none", "first") and not plan.schedule.spread:
            program = read(plan.unit.pp, plan.batch.microbatches)
            simulated = simulate(program, profile_costs(read.costs, read.microbatches))
            assert simulated.makespan_ns == pytest.approx(found.step_ns, rel=0.1)


def test_shares_of_time_add_up_to_no_more_than_all() -> None:
    for seed in (0, 3):
        pricer, plans = some_plans(seed)
        for plan in plans:
            lost = priced_plan(pricer, plan).lost
            assert all(-0.001 <= share <= 1 for share in lost.values()), (plan, lost)
            assert sum(lost.values()) <= 1.001, (plan, lost)


def test_a_step_is_the_one_that_the_description_of_models_simulates() -> None:
    job = make_job()
    pricer = Pricer(job)
    for chosen in (ScheduleChoice("1f1b"), ScheduleChoice("zb-h1"), ScheduleChoice("zbv", 2)):
        stages = (5, 4) if chosen.chunks == 1 else (2, 2, 3, 2)
        plan = JobPlan(
            "first", Sizes(Unit(1, 2, 2)), chosen, BatchChoice(4), stages, ((),) * len(stages)
        )
        loads = pricer.loads(2, plan.batch).microbatches
        theirs = step(job.model, job.device, plan.layout(), loads)
        assert pricer.priced(plan).step_ns == pytest.approx(theirs.total_ns, rel=1e-6)
        assert isinstance(plan.layout(), ParallelLayout)


def a_file(**changes: Any) -> dict[str, Any]:
    pricer = Pricer(make_job())
    plan = JobPlan(
        "first", Sizes(Unit(1, 2, 2)), ScheduleChoice("1f1b"), BatchChoice(4), (5, 4), ((1,), ())
    )
    made = job_file(pricer, priced_plan(pricer, plan), {"version": 2, "budgets": {"tokens": 64}})
    return json.loads(json.dumps(dump_job(made))) | changes


def test_the_loaders_rules_are_a_section(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    section: dict[str, Any] = {"version": 2, "budgets": {"tokens": 64}, "samples_per_step": 16}
    section |= {"accumulate": 4, "pipeline": {"profile": "elsewhere.json"}}
    path.write_text(json.dumps(a_file(balance=section)))
    balance = Balance.load(path)
    assert balance.budgets == {"tokens": 64}
    names = ("tokens", "tiles")
    config = PlanConfig.from_balance(balance, ranks=2, resources=names, samples_per_step=16)
    assert json.loads(config.pipeline)["placement"] == [0, 1]


def test_units_are_a_section(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    units = {"backbone": {"dp": 1, "pp": 2, "tp": 1}, "encoder": {"dp": 2, "pp": 1, "tp": 1}}
    path.write_text(json.dumps(a_file(units=units)))
    found = Units.from_layout(path)
    assert (found.backbone, found.encoder) == ((1, 2, 1), (2, 1, 1))


def test_files_of_single_planners_are_read_as_sections(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(json.dumps(dump_split(make_split((5, 4)))))
    assert read_stages(path) == make_split((5, 4))
    path.write_text(json.dumps(a_file()))
    assert read_stages(path).stages == make_split((5, 4), ((1,), ())).stages


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 2}, "version"),
        ({"stages": []}, "stages"),
        ({"layout": {"gpus": 4, "dp": 2, "tp": 1, "pp": 3}}, "2 stages for pp 3 x vpp 1; give 3"),
        ({"layout": {"gpus": 2, "dp": 2, "tp": 1, "pp": 2}}, "uses 4 GPUs of 2"),
        ({"microbatches": [{"tokens": 1}]}, "1 microbatches are described, a step has 4"),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_sections_that_do_not_fit_are_refused(
    changes: dict[str, Any], error: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(a_file(**changes)))
    with pytest.raises(ValueError, match=error) as caught:
        read_job(path)
    assert "job.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_is_for_the_plans_own_ranks(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(a_file()))
    plan: JobFile = read_job(path)
    assert plan(2, 6) == ScheduleChoice("1f1b").program(2, 6)
    with pytest.raises(ValueError, match="2 pipeline ranks, the mesh 4"):
        plan(4, 6)


def test_a_plan_runs_from_its_file_with_right_gradients(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    write_job(path)
    plan = read_job(path)
    assert plan.layout.dp * plan.layout.pp == RANKS
    with RankProcesses(RANKS, JobRank, str(path), True) as ranks:
        found: dict[str, Any] = {}
        for own in ranks.call("gradients"):
            found |= own
    model = sleeping_model(plan.microbatches[0]["tokens"], awake=True)
    infos = make_step(path, 0).infos
    for replica in range(plan.layout.dp):
        for batch in make_step(path, replica).microbatches:
            (loss(model(batch["x"]), batch["labels"]) / infos[0].step_label_tokens).backward()
    expected = {name: one.grad for name, one in model.named_parameters()}
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        assert gradient is not None
        assert found[name].allclose(gradient, rtol=1e-4, atol=1e-7), name
