"""Names of metrics: by Prometheus' conventions; dashboard, alerts and docs know no others."""

import json
import re
from collections import Counter

import pytest
import yaml

from counterpoise.balancer.pool.messages import (
    COSTS,
    SAMPLES,
    DoPart,
    FailedPlace,
    PartBroken,
    PartMade,
    PartMeasured,
)
from counterpoise.loader.metrics.families import LOADER_FAMILIES
from counterpoise.tools.services.metrics import (
    BALANCER_FAMILIES,
    WORKER_FAMILIES,
    WorkCounts,
    balancer_points,
)
from tests.docs.pages import page_named
from tests.imports import ROOT
from tests.tools.doctor.test_status import JOB, crew

FAMILIES = (*LOADER_FAMILIES.values(), *BALANCER_FAMILIES, *WORKER_FAMILIES)
NAME = re.compile(r"\bcounterpoise_[a-z_]+")
DEPLOY = ROOT / "deploy" / "metrics"


def test_no_two_metrics_have_one_name():
    assert not [name for name, n in Counter(each.name for each in FAMILIES).items() if n > 1]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each.name)
def test_names_follow_prometheus_conventions(family):
    assert re.fullmatch(r"counterpoise_(loader|balancer|worker)(_[a-z]+)+", family.name)
    assert family.name.endswith("_total") == (family.kind == "counter")
    assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|gib|percent)(_|$)", family.name)
    assert family.about.endswith(".")
    assert len(family.about) > 20
    assert all(re.fullmatch("[a-z_]+", label) for label in family.labels)
    assert not {"job", "instance", "le"} & {*family.labels}  # Prometheus' own


def expressions():
    board = json.loads((DEPLOY / "dashboard.json").read_text())
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return asked + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_exist():
    labels = {each.name: {"rank", "loader", *each.labels} for each in FAMILIES}
    for expression in expressions():
        named = NAME.findall(expression)
        assert named
        assert {*named} <= {*labels}, expression
        of_all = set().union(*(labels[name] for name in named)) | {"instance"}
        grouped = re.findall(r"(?:by|on) \(([^)]*)\)", expression)
        asked = {label.strip() for group in grouped for label in group.split(",")}
        assert asked <= of_all, expression


def test_the_page_names_each_metric_and_no_other():
    text = page_named("metric-names").read_text()
    assert {*NAME.findall(text)} == {each.name for each in FAMILIES}


def test_points_of_a_report_have_the_labels_of_their_families():
    points = balancer_points({"one": JOB, "two": JOB})
    assert {*points} == {each.name for each in BALANCER_FAMILIES}
    for family in BALANCER_FAMILIES:
        assert all(len(labels) == len(family.labels) for labels, _ in points[family.name])
    decoded = dict(points["counterpoise_balancer_worker_decoded_samples_total"])
    assert decoded == {(job, each.name): 400 for job in ("one", "two") for each in crew(4)}
    assert points["counterpoise_balancer_rank_request_age_seconds"] == []  # none is open


def test_a_worker_counts_the_samples_of_the_parts_that_it_makes():
    counts = WorkCounts()
    failed = FailedPlace(1, "k", "torn", is_io=False, source="")
    made = PartMade(1, 1, 60, (60,), (), (failed,), (), (), -1, 60, 2_000_000)
    counts.count_part("one", DoPart(1, SAMPLES, (0, 0, 0, 7, 8, 9)), made)
    measured = PartMeasured(2, ((5,), (5,)), (), 500_000, False, ())
    counts.count_part("one", DoPart(2, COSTS, (1, 0, 0, 7, 8)), measured)
    counts.count_part("one", DoPart(3, SAMPLES, (0, 0, 0, 7)), PartBroken(3, "no", 1))
    found = {
        (family.name, *sample.labels.values()): sample.value
        for family in counts.collect()
        for sample in family.samples
    }
    assert found == {
        ("counterpoise_worker_samples", "one", "decode"): 2,
        ("counterpoise_worker_samples", "one", "probe"): 2,
        ("counterpoise_worker_work_seconds", "one", "decode"): 2,
        ("counterpoise_worker_work_seconds", "one", "probe"): 0.5,
        ("counterpoise_worker_failed_samples", "one", "decode"): 1,
        ("counterpoise_worker_failed_samples", "one", "probe"): 0,
        ("counterpoise_worker_payload_bytes", "one"): 60,
    }
