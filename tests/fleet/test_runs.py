"""Which traces are ranks of one run."""

from __future__ import annotations

from kvcanary_cli.attribution.ranks import RankRecord
from kvcanary_cli.attribution.runs import Candidate, find_runs


def _one(path: str, tp: int = 0, *, size: int = 2, folder: str | None = None) -> Candidate:
    record = RankRecord(
        tp, 0, place=(("tp", tp),), sizes=(("tp_size", size),), engine="sglang 0.5.23"
    )
    return Candidate(path, record, folder)


def _runs(*candidates: Candidate) -> tuple[tuple[int, ...], ...]:
    found = find_runs(candidates)
    assert found.unclear == ()
    return found.runs


def test_named_ranks_belong_together_wherever_they_lie() -> None:
    assert _runs(_one("x/a.pt", 0), _one("y/b.pt", 1), _one("c.pt", 2, size=4)) == ((0, 1, 2),)


def test_traces_of_one_rank_are_several_runs() -> None:
    assert _runs(_one("a.pt"), _one("b.pt"), _one("c.pt")) == ()


def test_runs_in_folders_of_their_own_are_told_apart() -> None:
    named = [_one(f"{run}/rank{tp}.pt", tp) for run in "ab" for tp in (0, 1)]
    found = [Candidate(c.path, c.record, c.path[0]) for c in named]
    assert _runs(*named) == _runs(*found) == ((0, 1), (2, 3))


def test_runs_in_one_folder_are_told_apart_by_name() -> None:
    names = ("mon-rank{}.pt", "tue-rank{}.pt", "tp{}-pp0-dp0.kvtrace", "tp{}-pp0-dp0-2.kvtrace")
    traces = [_one(f"f/{name.format(tp)}", tp, folder="f") for tp in (0, 1) for name in names]
    assert _runs(*traces) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_found_traces_of_other_folders_or_deployments_are_not_compared() -> None:
    assert _runs(_one("a/0.pt", 0, folder="a"), _one("b/1.pt", 1, folder="b")) == ()
    assert _runs(_one("a/0.pt", 0, folder="a"), _one("a/1.pt", 1, size=4, folder="a")) == ()


def test_what_cannot_be_told_apart_is_said_and_not_compared() -> None:
    found = find_runs([_one("f/rank0.pt", 0), _one("f/rank1.pt", 0), _one("f/rank2.pt", 1)])
    assert found.runs == ()
    assert found.unclear == ((0, 1, 2),)


def test_a_trace_whose_ranks_were_not_kept_belongs_to_no_run() -> None:
    kept, other = _one("a.pt", 0), _one("b.pt", 1)
    other.record.kept = False
    assert _runs(kept, other) == ()
