"""Recorded fingerprints come back from the kernels as they were recorded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.backends import get_backend
from kvcanary_cli.replay.chains import as_uint64, mix, unmix
from kvcanary_cli.replay.fingerprints import RecordedFingerprints

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("mode", [RealKvHashMode.PARTIAL, RealKvHashMode.ALL])
@given(hashes=st.lists(INT64, min_size=1, max_size=8))
def test_the_stand_in_bytes_have_the_recorded_fingerprint(
    mode: RealKvHashMode, hashes: list[int]
) -> None:
    prints = RecordedFingerprints(len(hashes), "cpu")
    slots, values = np.arange(len(hashes)), np.array(hashes, dtype=np.int64)
    prints.set(slots, values)
    found = get_backend("reference").real_kv_hash(
        slots=torch.from_numpy(slots), real_kv_sources=[prints.source], real_kv_hash_mode=mode
    )
    assert found.tolist() == hashes
    assert prints.get(slots).tolist() == hashes


@given(st.lists(INT64, min_size=1))
def test_unmix_undoes_mix(values: list[int]) -> None:
    x = as_uint64(np.array(values, dtype=np.int64))
    assert (unmix(mix(x)) == x).all()
    assert (mix(unmix(x)) == x).all()
