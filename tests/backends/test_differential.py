"""The fast backends against the reference, bit for bit, on random cases."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.backends import get_backend
from kvcanary_cli.backends.reference.backend import ReferenceBackend
from tests.backends._cases import RANDOM_CASES, Case, random_write_case, shrink

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend
    from tests.tools.canary_ops import Outputs

OPS = list(RANDOM_CASES)
REFERENCE = ReferenceBackend()
SEEDS = {"cpu": 400, "triton": 20}
"""How many seeds each backend is given; Triton's interpreter takes a tenth of a second a case."""


def difference(backend: Backend, case: Case) -> str | None:
    want, got = case.run(REFERENCE), case.run(backend)
    return case.difference(want, got, in_order=backend.name != "triton")


def assert_equal(backend: Backend, case: Case) -> None:
    """Fail with the smallest case that still differs."""
    if difference(backend, case) is None:
        return
    small = shrink(case, lambda smaller: difference(backend, smaller) is not None)
    pytest.fail(f"{backend.name}: {difference(backend, small)}\n{small}")


@pytest.fixture(scope="module", params=list(SEEDS))
def fast(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


@pytest.mark.parametrize("op", OPS)
def test_seeds(fast: Backend, op: str) -> None:
    for seed in range(SEEDS[fast.name]):
        assert_equal(fast, RANDOM_CASES[op](Random(f"{op} {seed}")))


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(rng=st.randoms(use_true_random=False))
def test_cpu_on_searched_cases(op: str, rng: Random) -> None:
    case = RANDOM_CASES[op](rng)
    assert difference(get_backend("cpu"), case) is None, str(case)


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(rng=st.randoms(use_true_random=False))
def test_triton_on_searched_cases(op: str, rng: Random) -> None:
    case = RANDOM_CASES[op](rng)
    assert difference(get_backend("triton"), case) is None, str(case)


# Seeds that made a row run past the batch while the kernel was written: an end of -2^63 wraps when
# the row's begin is taken from it.
@pytest.mark.parametrize("seed", [106, 244])
def test_a_row_that_ends_at_the_smallest_integer(fast: Backend, seed: int) -> None:
    case = random_write_case(Random(seed))
    assert -(1 << 63) in case.inputs["write_offsets"].tolist()
    assert_equal(fast, case)


@pytest.mark.parametrize("op", OPS)
def test_faults_raise_the_same_text_without_a_cell(cpu: Backend, op: str) -> None:
    if op == "scatter":
        pytest.skip("a scatter has no faults")
    raised = set()
    for seed in range(150):
        case = RANDOM_CASES[op](Random(f"fault {seed}"))
        texts = [_text_of(backend, case) for backend in (REFERENCE, cpu)]
        assert texts[0] == texts[1]
        raised.add(texts[0] is not None)
    assert raised == {True, False}


def _text_of(backend: Backend, case: Case) -> str | None:
    from tests.tools.canary_ops import run_op

    try:
        run_op(backend, case.op, case.inputs, with_fault_cell=False)
    except ValueError as error:
        return str(error)
    return None


class _LosesTheLastToken:
    """The reference with a bug: it writes one token less."""

    name = "buggy"

    def run(self, case: Case) -> Outputs:
        locs = case.inputs["out_cache_loc"].clone()
        locs[-1:] = -1
        return Case(case.op, {**case.inputs, "out_cache_loc": locs}).run(REFERENCE)


def test_a_difference_is_found_and_made_small() -> None:
    buggy = _LosesTheLastToken()

    def differs(case: Case) -> bool:
        return case.difference(case.run(REFERENCE), buggy.run(case)) is not None

    cases = (random_write_case(Random(seed)) for seed in range(100))
    case = next(case for case in cases if differs(case))
    small = shrink(case, differs)
    assert differs(small)
    assert int((small.inputs["out_cache_loc"] >= 0).sum()) == 1
    assert not small.inputs["real_kv_sources"]
    assert "out_cache_loc" in str(small)
