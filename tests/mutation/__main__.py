"""Runs `make mutants`: tries the tests of planning and schedules with a seeded sample of mutants.

Each mutant is one small change of a module; its module's tests are run until one fails. What is
found is kept in a file, a line for each, and a run goes on where the last one stopped. Equivalents,
which no test can notice, are listed in equivalents.py with the reason. The report is one JSON
object; the exit status is 1 if fewer than 90 % of the others were noticed.
"""

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.equivalents import EQUIVALENTS
from tests.mutation.operators import Mutant, mutants_of, mutated
from tests.mutation.planting import ROOT, measure, preload, try_mutant
from tests.mutation.table import TRIED, Tried

COUNT, LEAST, GOAL = 620, 15, 0.9


@dataclass(frozen=True, slots=True)
class Chosen:
    """A mutant of the sample, and the tests that are run with it."""

    mutant: Mutant
    tried: Tried


def sample(count: int, seed: int, least: int = LEAST) -> list[Chosen]:
    """Draw mutants, at least so many of each module that has as many; in the order to be tried.

    The order is drawn as well, so that the first ones are a sample too.
    """
    draw = random.Random(seed)
    chosen: list[Chosen] = []
    rest: list[Chosen] = []
    for tried in TRIED:
        for name in tried.modules:
            module = f"{tried.folder}/{name}"
            source = (ROOT / f"{module}.py").read_text()
            found = [Chosen(mutant, tried) for mutant in mutants_of(module, source)]
            draw.shuffle(found)
            chosen += found[:least]
            rest += found[least:]
    draw.shuffle(rest)
    chosen += rest[: max(0, count - len(chosen))]
    draw.shuffle(chosen)
    return chosen[:count]


def try_all(chosen: list[Chosen], kept: Path) -> list[dict[str, Any]]:
    """Try mutants that are not in the kept file, and add them to it; return all verdicts."""
    known = {line["name"]: line for line in map(json.loads, kept.read_text().splitlines())}
    preload(with_torch=any("runtime" in each.tried.folder for each in chosen))
    tests_s: dict[tuple[Any, ...], dict[str, float]] = {}
    for number, each in enumerate(chosen):
        mutant, tried = each.mutant, each.tried
        if mutant.name in known:
            continue
        setting = tried.tests, tried.as_python
        if setting not in tests_s:
            tests_s[setting] = measure(*setting)
        tree = mutated((ROOT / f"{mutant.module}.py").read_text(), mutant.number)
        verdict = try_mutant(mutant.module, tree, tried.tests, tests_s[setting], tried.as_python)
        known[mutant.name] = {
            "name": mutant.name, "module": mutant.module, "outcome": verdict.outcome,
            "by": verdict.by, "cpu_s": verdict.cpu_s,
        }  # fmt: skip
        with kept.open("a") as file:
            file.write(json.dumps(known[mutant.name]) + "\n")
        print(f"{number + 1}/{len(chosen)} {verdict.outcome} {mutant.name}", file=sys.stderr)
    return [known[each.mutant.name] for each in chosen]


def report(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the score, of each module too, and the survivors; equivalents do not count."""
    alive = [each for each in verdicts if each["outcome"] == "survived"]
    equivalent = [each["name"] for each in alive if each["name"] in EQUIVALENTS]
    counted = len(verdicts) - len(equivalent)
    survivors = [each["name"] for each in alive if each["name"] not in EQUIVALENTS]
    tried, died = Counter(), Counter()
    for each in verdicts:
        tried[each["module"]] += each["name"] not in equivalent
        died[each["module"]] += each["outcome"] != "survived"
    return {
        "mutants": len(verdicts), "equivalent": len(equivalent), "survived": len(survivors),
        "timeout": sum(each["outcome"] == "timeout" for each in verdicts),
        "score": round(1 - len(survivors) / max(1, counted), 4),
        "score_with_equivalents": round(1 - len(alive) / max(1, len(verdicts)), 4),
        "modules": {name: [died[name], tried[name]] for name in sorted(tried)},
        "survivors": survivors,
    }  # fmt: skip


def main() -> int:
    """Try what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, help="try only the first ones of the sample")
    parser.add_argument("--module", default="", help="only modules with this in their path")
    parser.add_argument("--kept", type=Path, default=Path("mutants.jsonl"), help="verdicts so far")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    asked = parser.parse_args()
    chosen = sample(asked.count, asked.seed)[: asked.first]
    chosen = [each for each in chosen if asked.module in each.mutant.module]
    asked.kept.touch()
    if asked.again:
        lines = asked.kept.read_text().splitlines()
        asked.kept.write_text("".join(f"{x}\n" for x in lines if '"survived"' not in x))
    found = report(try_all(chosen, asked.kept))
    print(json.dumps(found, indent=1))
    return 0 if found["score"] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
