"""A job's JSON: it comes back as it was written, and an error names the field that is wrong."""

import json
from dataclasses import replace
from typing import Any

import pytest

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec, from_json, to_json

JOB = JobSpec(
    source={"pattern": "shard-{0..3}.tar"},
    plan=PlanConfig(2, 8, "auto", ("tiles", "tokens"), (None, 9000)),
    lease_s=5,
)


def test_a_job_comes_back_as_it_was_written() -> None:
    assert from_json(to_json(JOB)) == JOB
    assert from_json(to_json(JobSpec(JOB.plan))) == JobSpec(JOB.plan)
    sized = replace(JOB.plan, multiples=(("tokens", 16),), buckets=(("tokens", (4096, 9000)),))
    assert from_json(to_json(JobSpec(sized))) == JobSpec(sized)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"buffer_bytes": "1"}, "job.buffer_bytes: expected int, got str"),
        ({"buffer_bytes": True}, "job.buffer_bytes: expected int, got bool"),
        ({"shuffle": 1}, "job.shuffle: expected bool, got int"),
        ({"source": []}, "job.source: expected object, got array"),
        ({"lease_s": None}, "job.lease_s: expected float, got null"),
        ({"lease_s": 0}, "job: lease_s is 0.0, it must be positive"),
        ({"colour": "red"}, "job has a field 'colour' that is unknown"),
    ],
)
def test_an_error_names_the_field_of_the_job(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}$"):
        from_json(json.dumps(json.loads(to_json(JOB)) | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ranks": 2.0}, "job.plan.ranks: expected int, got float"),
        ({"ranks": 0}, "job.plan: ranks is 0, allowed is a positive integer"),
        ({"budgets": [None, "9000"]}, r"job.plan.budgets\[1\]: expected int . null, got str"),
        ({"resources": "tiles"}, "job.plan.resources: expected array, got str"),
        ({"multiples": [["tokens", 0]]}, r"job.plan: align .or cp. of tokens is \(0,\), allowed.*"),
        ({"buckets": [["tokens", [9, 5]]]}, r"job.plan: buckets of tokens is \(9, 5\), allowed.*"),
        ({"buckets": [["frames", [9]]]}, "job.plan: buckets names frames, but samples cost .*"),
        ({"rank": 2}, "job has a field 'plan.rank' that is unknown"),
    ],
)
def test_an_error_names_the_field_of_the_plan(changes: dict[str, Any], reason: str) -> None:
    job = json.loads(to_json(JOB))
    job["plan"] |= changes
    with pytest.raises(ValueError, match=f"^{reason}$"):
        from_json(json.dumps(job))


def test_a_plan_without_a_field_is_refused() -> None:
    job = json.loads(to_json(JOB))
    del job["plan"]["ranks"]
    with pytest.raises(ValueError, match=r"job.plan: object missing required field ranks"):
        from_json(json.dumps(job))


@pytest.mark.parametrize("text", ["[]", "null", "3", "{}", '{"source": {}}'])
def test_a_text_without_a_plan_is_no_job(text: str) -> None:
    with pytest.raises(ValueError, match="not a job"):
        from_json(text)
