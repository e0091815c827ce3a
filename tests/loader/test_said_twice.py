"""What balancer and workers, or a plain loop, say alike, as neither may import the other."""

from counterpoise.balancer.planning.problem import costs as planned
from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol import job_spec
from counterpoise.loader import refused_arguments
from counterpoise.workers.sources import costs, failures, labels


def test_the_largest_cost_of_a_sample_is_what_planning_can_add_up() -> None:
    assert costs.MAX_COST == planned.MAX_COST


def test_the_cost_that_counts_label_tokens_has_one_name() -> None:
    assert labels.LABEL_TOKENS == job_spec.LABEL_TOKENS


def test_a_loader_holds_what_a_job_holds_where_nobody_says() -> None:
    job = job_spec.JobSpec(PlanConfig(2, 8, 1, ("tokens",), (None,)))
    assert job.buffer_bytes == refused_arguments.BUFFER_BYTES


def test_a_job_takes_the_error_policies_that_can_be_balanced() -> None:
    assert {*job_spec.ON_ERROR} == {*failures.ERROR_ACTIONS} - {"refill"}
