"""The triton backend equals the reference on random cases: what both leave behind, to the bit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.backends import get_backend
from tests.backends._cases import RANDOM_CASES, Case, random_write_case

# The interpreter takes up to 0.2 s a case; the reference next to nothing.
_SEEDS = range(20)
_EXAMPLES = 15


def _check(case: Case) -> None:
    want = case.run(get_backend("reference"))
    difference = case.difference(want, case.run(get_backend("triton")), in_order=False)
    assert difference is None, f"{difference}\n{case}"


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("op", RANDOM_CASES)
def test_seeded(op: str, seed: int) -> None:
    _check(RANDOM_CASES[op](random.Random(f"{op}-{seed}")))


@pytest.mark.parametrize("op", RANDOM_CASES)
def test_any_case(op: str) -> None:
    @settings(max_examples=_EXAMPLES, deadline=None)
    @given(st.randoms(use_true_random=False))
    def run(rng: random.Random) -> None:
        _check(RANDOM_CASES[op](rng))

    run()


# Seeds that made a row run past the batch while the kernel was written: an end of -2^63 wraps when
# the row's begin is taken from it.
@pytest.mark.parametrize("seed", [106, 244])
def test_row_that_ends_at_the_smallest_integer(seed: int) -> None:
    case = random_write_case(random.Random(seed))
    assert -(1 << 63) in case.inputs["write_offsets"].tolist()
    _check(case)
