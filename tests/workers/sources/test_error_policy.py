"""One definition of `on_error`, whoever asks."""

import pytest

from counterpoise.balancer.planning.problem.config import PlanConfig
from counterpoise.balancer.protocol.job_spec import JobSpec
from counterpoise.loader import OnError
from counterpoise.workers.sources.failures import refuse_refill

PLAN = PlanConfig(2, 4, 2, ("tokens",), (None,))


@pytest.mark.parametrize("on_error", ["retry", "", None, 3, ["skip"]])
def test_another_is_refused_with_the_list(on_error):
    with pytest.raises(ValueError, match="allowed are"):
        OnError(on_error)
    with pytest.raises(ValueError, match="allowed are"):
        JobSpec(PLAN, on_error=on_error)


def test_a_job_cannot_refill():
    with pytest.raises(ValueError, match="cannot be balanced"):
        JobSpec(PLAN, on_error="refill")
    with pytest.raises(ValueError, match="got a list: use on_error='skip'"):
        refuse_refill("refill", "got a list")
