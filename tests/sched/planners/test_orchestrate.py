"""Orchestration: equal to brute force, within memory, and candidates in the formula's order."""

import itertools
import random
from collections.abc import Iterator
from functools import cache

import pytest

from counterpoise.sched.planners.orchestration.baselines import (
    MEGATRON_STAGES,
    baselines,
    megatron,
    ratio,
    rigid,
)
from counterpoise.sched.planners.orchestration.search import capped, divisors, orchestrate
from counterpoise.sched.planners.orchestration.units import (
    Module,
    OrchestrationProblem,
    Unit,
    iteration_ns,
    memory_bytes,
    microbatches_ahead,
    module_bytes,
    stage_ns,
    warmup_ns,
)
from counterpoise.sched.shapes import read_model
from tests.sched.planners.shaped import preset

SIZES = (1, 2, 4, 8)


def a_module(name: str, rng: random.Random, work_ns: int, **rest: int) -> Module:
    """A module whose tensor parallelism pays less than it promises."""
    layers = rng.randint(2, 6)
    times = {tp: work_ns // tp + rng.randint(0, work_ns // 10) * (tp > 1) for tp in SIZES}
    sizes = {"state_bytes": rng.randint(1, 200), "optimizer_bytes": rng.randint(1, 200)}
    sizes |= {"activation_bytes": rng.randint(0, 60), "output_bytes": rng.randint(0, 3)}
    back = {tp: rng.randint(0, 2) * ns for tp, ns in times.items()}
    return Module(name, layers, times, back, **sizes, **rest)


def a_job(seed: int) -> OrchestrationProblem:
    """A small job; memory is tight in some, encoder or generator missing."""
    rng = random.Random(seed)
    modules = [a_module("backbone", rng, rng.randint(200, 2000))]
    if seed % 6 != 1:
        modules.insert(0, a_module("encoder", rng, rng.randint(20, 900), parts=rng.choice((1, 2))))
    if seed % 6 != 2:
        modules.append(a_module("generator", rng, rng.randint(20, 900)))
    return OrchestrationProblem(
        tuple(modules),
        gpus=rng.choice((8, 12, 16, 24, 32)),
        batch=rng.choice((4, 6, 8, 12)),
        memory_bytes=rng.choice((150, 300, 1000)),
        link_mb_per_s=1000,
    )


def every_unit(job: OrchestrationProblem, module: Module, sizes: tuple[int, ...]) -> Iterator[Unit]:
    """All there are, with no thought of which are useful."""
    for tp, dp, pp in itertools.product(SIZES, sizes, range(1, module.layers + 1)):
        if tp * dp * pp <= job.gpus:
            yield Unit(tp, dp, pp)


@cache
def brute_force(seed: int, most: int = 10**6) -> int | None:
    """The least iteration time over all layouts that fit; None if there are none.

    `most`: of a module's GPUs.
    """
    job, best = a_job(seed), None
    for replicas in divisors(job.batch):
        pools = []
        for module in job.modules:
            sizes = divisors(replicas) + tuple(replicas * k for k in divisors(module.parts)[1:])
            pools.append(
                list(every_unit(job, module, (replicas,) if module.name == "backbone" else sizes))
            )
        for units in itertools.product(*pools):
            if sum(unit.gpus for unit in units) > job.gpus or max(u.gpus for u in units) > most:
                continue
            time = iteration_ns(job, units)
            if (best is None or time < best) and max(module_bytes(job, units)) <= job.memory_bytes:
                best = time
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_first_layout_is_the_best_there_is(seed: int) -> None:
    job = a_job(seed)
    best = brute_force(seed)
    if best is None:
        with pytest.raises(ValueError, match="no layout"):
            orchestrate(job)
        return
    found = orchestrate(job)[0]
    assert found.formula_ns == best == iteration_ns(job, found.units)
    assert found.gpus <= job.gpus
    assert max(module_bytes(job, found.units)) <= job.memory_bytes


@pytest.mark.parametrize("replicas", [1, 16, 240, 1920])
def test_the_search_prices_units_as_the_formulas_do(replicas: int) -> None:
    from counterpoise.sched.planners.orchestration.search import _ANY, _options

    job = OrchestrationProblem(preset("mllm-72b"), 1296, 1920, 74 * 10**9)
    n = job.batch // replicas
    for at, module in enumerate(job.modules):
        sizes = (replicas,) if at == job.at else divisors(replicas)
        found = _options(job, at, replicas, sizes, (job.gpus,) * len(job.modules))
        for tp, dp, pp, gpus, stage, warm, after in found[::7].tolist():
            unit = Unit(tp, dp, pp)
            assert gpus == unit.gpus
            assert stage == stage_ns(module, unit, replicas)
            assert warm == warmup_ns(module, unit, replicas, job.link_mb_per_s)
            if after < _ANY:
                assert memory_bytes(module, unit, replicas, after, n) <= job.memory_bytes
                assert memory_bytes(module, unit, replicas, after + 1, n) > job.memory_bytes
            else:
                assert memory_bytes(module, unit, replicas, n, n) <= job.memory_bytes


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_the_rigid_layout_is_never_better(seed: int) -> None:
    job = a_job(seed)
    for usual in baselines(job).values():
        assert max(module_bytes(job, usual.units)) <= job.memory_bytes
        assert usual.formula_ns == iteration_ns(job, usual.units)
        assert usual.formula_ns >= orchestrate(job)[0].formula_ns


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_the_rigid_layout_is_the_best_of_all_tp_dp_and_pp(seed: int) -> None:
    job = a_job(seed)
    found = [
        iteration_ns(job, units)
        for tp, dp, pp in itertools.product(SIZES, divisors(job.batch), range(1, 7))
        for units in [
            tuple(Unit(tp, dp, pp if at == job.at else 1) for at in range(len(job.modules)))
        ]
        if pp <= job.modules[job.at].layers and sum(unit.gpus for unit in units) <= job.gpus
        if max(module_bytes(job, units)) <= job.memory_bytes
    ]
    usual = rigid(job)
    assert (usual.formula_ns if usual else None) == min(found, default=None)


def test_megatron_s_layout_is_the_papers() -> None:
    job = OrchestrationProblem(preset("mllm-72b"), 1296, 1920, 73 * 10**9, 12_500)
    # PP 10 beside one stage each for encoder and generator, TP 8; 12 of those pipelines.
    found = megatron(job, MEGATRON_STAGES["mllm-72b"])
    assert found is not None
    assert found.units == (Unit(8, 12), Unit(8, 12, 10), Unit(8, 12))


def test_by_ratio_no_module_has_more_gpus_than_its_share_of_operations() -> None:
    job = OrchestrationProblem(preset("mllm-15b"), 256, 256, 73 * 10**9, 12_500)
    found = ratio(job)
    assert found is not None
    whole = sum(module.flops for module in job.modules)
    for module, unit in zip(job.modules, found.units, strict=True):
        assert unit.gpus <= max(1, job.gpus * module.flops / whole)


@pytest.mark.parametrize("seed", range(0, 30, 5))
def test_capped_is_the_best_of_all_layouts_within_the_caps(seed: int) -> None:
    job = a_job(seed)
    most = max(1, job.gpus // len(job.modules))
    found = capped(job, (most,) * len(job.modules))
    assert (found.formula_ns if found else None) == brute_force(seed, most)


def test_most_of_those_jobs_can_be_laid_out() -> None:
    assert sum(brute_force(seed) is not None for seed in range(30)) >= 20


@pytest.mark.parametrize("seed", range(0, 30, 4))
def test_candidates_are_in_order_and_of_different_backbones(seed: int) -> None:
    job = a_job(seed)
    try:
        found = orchestrate(job, keep=6)
    except ValueError:
        pytest.skip("nothing fits into this one's memory")
    times = [layout.formula_ns for layout in found]
    assert times == sorted(times)
    assert len({layout.units[job.at] for layout in found}) == len(found)
    assert found[0].formula_ns == orchestrate(job)[0].formula_ns


def test_the_formula_is_the_papers_where_layers_divide_and_nothing_travels() -> None:
    encoder = Module("encoder", 4, {1: 100}, {1: 200})
    backbone = Module("backbone", 8, {1: 1000, 2: 600}, {1: 2000, 2: 1200})
    job = OrchestrationProblem((encoder, backbone), gpus=24, batch=12, memory_bytes=1)
    units = (Unit(1, 1, 2), Unit(2, 2, 4))
    # Two samples in the encoder's microbatch; six microbatches; the backbone's stages are slower.
    assert iteration_ns(job, units) == (2 * 300 + 1800) + 5 * 1800 // 4


def test_uneven_layers_cost_what_the_fullest_stage_costs() -> None:
    module = Module("backbone", 5, {1: 50}, {1: 100})
    assert stage_ns(module, Unit(pp=3), 1) == stage_ns(module, Unit(pp=4), 1) == 60


def test_an_encoder_holds_a_microbatch_for_every_stage_behind_it() -> None:
    encoder = Module("encoder", 1, {1: 1}, {1: 1}, activation_bytes=10)
    backbone = Module("backbone", 4, {1: 1}, {1: 1}, activation_bytes=4)
    job = OrchestrationProblem((encoder, backbone), gpus=5, batch=9, memory_bytes=10**6)
    assert module_bytes(job, (Unit(), Unit(pp=4))) == (5 * 10, 4)
    assert microbatches_ahead(Unit(), microbatches_ahead(Unit(pp=4), 0)) == 5


def test_a_frozen_encoder_frees_gpus_for_the_backbone() -> None:
    def backbone_gpus(frozen: tuple[str, ...]) -> int:
        job = OrchestrationProblem(preset("mllm-72b", frozen=frozen), 128, 128, 74 * 10**9)
        return orchestrate(job)[0].units[1].gpus

    assert backbone_gpus(("encoder",)) >= backbone_gpus(())


@pytest.mark.parametrize(("gpus", "batch"), [(1296, 1920), (648, 960), (324, 480), (112, 240)])
def test_the_papers_settings_have_a_layout(gpus: int, batch: int) -> None:
    job = OrchestrationProblem(preset("mllm-72b"), gpus, batch, 74 * 10**9)
    found = orchestrate(job)[0]
    assert 0.8 * gpus <= found.gpus <= gpus
    assert max(module_bytes(job, found.units)) <= job.memory_bytes


def test_bad_jobs_are_refused_in_one_line() -> None:
    one = Module("backbone", 2, {1: 1}, {1: 1})
    with pytest.raises(ValueError, match="one named backbone"):
        OrchestrationProblem((Module("encoder", 1, {1: 1}, {1: 1}),), 1, 1, 1)
    with pytest.raises(ValueError, match="1 or more"):
        OrchestrationProblem((one,), 0, 1, 1)
    with pytest.raises(ValueError, match="no times for TP 1, 2, 4, 8; it has them for 16"):
        OrchestrationProblem((Module("backbone", 2, {16: 1}, {16: 1}),), 1, 1, 1)
    with pytest.raises(ValueError, match="too large"):
        OrchestrationProblem((Module("backbone", 2, {1: 2**61}, {1: 1}),), 1, 1, 1)
    with pytest.raises(ValueError, match="same TP sizes"):
        Module("backbone", 2, {1: 1}, {2: 1})
    with pytest.raises(ValueError, match="no layout on 1 GPUs"):
        orchestrate(
            OrchestrationProblem((Module("backbone", 2, {1: 1}, {1: 1}, state_bytes=9),), 1, 1, 8)
        )


def test_a_backbone_computes_its_vocabulary_and_holds_it_twice() -> None:
    backbone = preset("mllm-9b")[1]
    layer = read_model("mllm-9b").language.layers[0]
    words = 4096 * 128_256  # hidden x size, of the embedding and of the output layer each
    flops = 32 * layer.forward_flops(tokens=8192, pairs=8192**2) + 2 * 8192 * words
    # Half of an A800's 312 TFLOP/s; one rank has no collectives.
    assert backbone.forward_ns[1] == pytest.approx(flops / 156e3, rel=1e-6)
    assert backbone.backward_ns[1] == pytest.approx(2 * flops / 156e3, rel=1e-6)
    assert backbone.state_bytes == 6 * (32 * layer.parameters + 2 * words)
