"""Who waits for whom: the chain leads to the rank that holds the others up."""

from dataclasses import replace

from counterpoise.sched import schedule
from counterpoise.sched.runtime.compiled import collectives, compile_program, lowered
from counterpoise.sched.runtime.execution.waiting import Pipelines, Standing
from counterpoise.sched.transforms.training import with_whole_last_backward


def pipelines(name: str, ranks: int = 3) -> Pipelines:
    program = lowered(schedule(name, ranks=ranks, microbatches=4))
    lists = [compile_program(program, rank) for rank in range(ranks)]
    return Pipelines(lists, collectives(program))


def at(known: Pipelines, rank: int, what: str, waiting: str = "", **more) -> Standing:
    place = next(n for n, op in enumerate(known.lists[rank]) if str(op.what) == what)
    return Standing(5, place, waiting, 9.0, **more)


def test_the_chain_ends_at_the_rank_that_computes() -> None:
    known = pipelines("1f1b")
    standings = {
        2: at(known, 2, "2F1", "1F1"),
        1: at(known, 1, "1F1", "0F1"),
        0: at(known, 0, "0F1"),
    }
    assert known.explain(2, standings) == (
        "step 5: rank 2 at 2F1 waits since 9 s for 1F1 of rank 1; rank 1 at 1F1 waits since 9 s "
        "for 0F1 of rank 0; rank 0 is at 0F1 since 9 s"
    )


def test_the_chain_ends_where_nothing_is_known() -> None:
    known = pipelines("1f1b")
    text = known.explain(1, {1: at(known, 1, "1F0", "0F0")})
    assert text.endswith(
        "rank 1 at 1F0 waits since 9 s for 0F0 of rank 0; of rank 0 nothing is known"
    )


def test_a_gathering_waits_for_those_who_have_not_entered() -> None:
    known = pipelines("1f1b-alg1")
    standings = {
        0: at(known, 0, "0T0", "0CS0"),
        1: at(known, 1, "1S0"),
        2: at(known, 2, "2T0", "2CS0"),
    }
    assert "for 0CS0 of rank 1; rank 1 is at 1S0" in known.explain(0, standings)


def test_a_broadcast_waits_for_its_root_alone() -> None:
    known = pipelines("1f1b-alg1")
    standings = {0: at(known, 0, "0S0", "0CX0"), 1: at(known, 1, "1F0"), 2: at(known, 2, "2F0")}
    assert "for 0CX0 of rank 2; rank 2 is at 2F0" in known.explain(0, standings)


def test_a_send_waits_for_its_receiver() -> None:
    known = pipelines("1f1b")
    standings = {0: at(known, 0, "0SEND_F0", "0F0"), 1: at(known, 1, "1F0")}
    assert "rank 0 at 0SEND_F0 waits since 9 s for 0F0 of rank 1" in known.explain(0, standings)


def test_ranks_that_wait_for_each_other_are_named_once() -> None:
    known = pipelines("1f1b")
    standings = {0: at(known, 0, "0B0", "1B0"), 1: at(known, 1, "1F1", "0F1")}
    assert known.explain(0, standings).count("rank 1 at") == 1


def test_a_rank_at_the_end_waits_for_those_who_are_behind() -> None:
    known = pipelines("1f1b")
    end = Standing(5, len(known.lists[0]), since_s=9.0)
    standings = {0: end, 1: at(known, 1, "1B3", "2B3"), 2: at(known, 2, "2B3")}
    assert known.explain(0, standings) == (
        "step 5: rank 0 is at the end of step 5 since 9 s and waits for rank 1 and 2; "
        "rank 1 at 1B3 waits since 9 s for 2B3 of rank 2; rank 2 is at 2B3 since 9 s"
    )
    assert known.late(5, standings) == [1, 2]


def test_a_rank_at_the_end_waits_for_who_is_silent_if_all_are_there() -> None:
    known = pipelines("1f1b")
    ends = {rank: Standing(5, len(ops), since_s=9.0) for rank, ops in enumerate(known.lists)}
    ends[1] = replace(ends[1], silent_s=8.0)
    assert known.explain(0, ends) == (
        "step 5: rank 0 is at the end of step 5 since 9 s and waits for rank 1; "
        "rank 1 is at the end of step 5 since 9 s (its process is not heard of since 8 s)"
    )


def test_a_silent_rank_is_named_though_the_chain_does_not_lead_there() -> None:
    known = pipelines("1f1b")
    standings = {
        2: at(known, 2, "2F1", "1F1"),
        1: at(known, 1, "1B0"),
        0: at(known, 0, "0F3", silent_s=9.0),
    }
    text = known.explain(2, standings)
    assert "rank 1 is at 1B0 since 9 s; rank 0 is at 0F3 since 9 s (its process is not" in text


def test_of_those_who_are_awaited_the_silent_one_is_looked_at() -> None:
    known = pipelines("1f1b-alg1")
    standings = {
        0: at(known, 0, "0T0", "0CS0"),
        1: at(known, 1, "1S0"),
        2: at(known, 2, "2S0", silent_s=7.0),
    }
    text = known.explain(0, standings)
    assert "for 0CS0 of rank 1 and 2" in text
    assert text.endswith("rank 2 is at 2S0 since 9 s (its process is not heard of since 7 s)")


def test_the_last_backward_of_a_sharded_stage_is_whole_and_comes_last() -> None:
    for name in ("zb-h1", "zb-h2", "zbv", "v-half", "dualpipev", "1f1b"):
        program = schedule(name, ranks=2, microbatches=4)
        for row in with_whole_last_backward(program, range(program.stages)).ranks:
            for stage in {item.stage for item in row}:
                own = [p for p in row if p.stage == stage and p.kind in "BIW"]
                assert own[-1].kind == "B"
                assert len({p.microbatch for p in own if p.kind in "BI"}) == 4
