"""`make bench NAME=faults`: checks that epochs with faults deliver what those without do."""

import time
from collections import Counter
from collections.abc import Sequence

import click
from rich.progress import track
from rich.table import Table
from tests.simulation.trial import FAULTS, Verdict, trial
from tests.simulation.variants import (
    PULLED_VARIANTS,
    SHARED_VARIANTS,
    VARIANTS,
)

from counterpoise.tools.console.reporting import emit, progress_console


@click.command("faults")
@click.option("--seeds", default=1000, show_default=True, help="Simulated runs.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Replay this one simulated seed and print its last events.")
@click.option("--shared", is_flag=True, help="Only jobs whose ranks several processes share.")
@click.option("--pulled", is_flag=True, help="Only jobs whose ranks pull payloads from workers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def command(
    seeds: int,
    first: int,
    seed: int | None,
    shared: bool,
    pulled: bool,
    as_json: bool,
) -> int:
    """Kill, stop, cut and delay; compare every delivered batch with a run without faults.

    Each seed is an epoch of 208 samples with 2 ranks, 3 workers and 5 faults on a simulated
    cluster; with --shared several processes play each rank, come late, fall behind and die; with
    --pulled ranks pull payloads, and pulls are lost, late or gone. Exit status 1 if anything was
    lost, came twice, came in another batch or never came. With real processes: `make faults`.

    \b
    Examples:
      make bench NAME=faults ARGS="--seeds 1000"
      make bench NAME=faults ARGS="--seed 17"
      make bench NAME=faults ARGS="--pulled --seeds 200"
    """  # noqa: D301
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}: give at least 1")
    variants = _variants(shared, pulled)
    if seed is not None:
        return _replay(seed, variants)
    report, wrong = _simulated(range(first, first + seeds), variants)
    emit(report, as_json, _table(report))
    return 1 if wrong else 0


def _variants(shared: bool, pulled: bool) -> Sequence[str]:
    """Return the names of the jobs that are tried."""
    if shared and pulled:
        raise ValueError("give one of --shared and --pulled: some jobs are of both kinds")
    if shared:
        return SHARED_VARIANTS
    return PULLED_VARIANTS if pulled else VARIANTS


def _simulated(seeds: range, variants: Sequence[str]) -> tuple[dict[str, object], int]:
    """Try all seeds; return the report and the number of failed ones."""
    started = time.perf_counter()
    kinds: Counter[str] = Counter()
    failed: list[Verdict] = []
    for seed in track(seeds, "seeds", console=progress_console, transient=True):
        verdict = trial(seed, variants=variants)
        kinds.update({fault.kind for fault in verdict.faults})
        if verdict.wrong:
            failed.append(verdict)
    # A replay of the first failures prints their events, which are not kept while trying.
    for verdict in failed[:3]:
        _report(trial(verdict.seed, traced=True, variants=variants))
    report: dict[str, object] = {
        "seeds": len(seeds),
        "faults": FAULTS * len(seeds),
        "lost": sum(each.lost for each in failed),
        "duplicated": sum(each.duplicated for each in failed),
        "digest_mismatches": sum(each.mismatch for each in failed),
        "stuck": sum(each.stuck for each in failed),
        "failed": sum(each.failed for each in failed),
        "failed_seeds": [each.seed for each in failed[:20]],
        "seeds_with": {kind: round(n / len(seeds), 3) for kind, n in sorted(kinds.items())},
        "seconds": round(time.perf_counter() - started, 2),
    }
    return report, len(failed)


def _replay(seed: int, variants: Sequence[str]) -> int:
    """Run one seed and print its events; return the exit status."""
    verdict = trial(seed, traced=True, variants=variants)
    _report(verdict)
    return 1 if verdict.wrong else 0


def _report(verdict: Verdict) -> None:
    """Print a seed's faults, verdict and last events to standard error."""
    wrong = verdict.wrong or "nothing wrong"
    click.echo(f"seed {verdict.seed} ({verdict.variant}): {wrong}", err=True)
    for line in (*map(str, verdict.faults), *verdict.trace):
        click.echo(f"  {line}", err=True)


def _table(report: dict[str, object]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in report.items():
        table.add_row(name.replace("_", " "), str(value))
    return table
