"""Read-backs keep the value of the moment at which they were staged."""

from __future__ import annotations

import pytest
import torch
from canary_rig import SMALL, full_group

from kvcanary_cli.backends import get_backend
from kvcanary_cli.canary import (
    CanaryConfig,
    CanaryManager,
    CanaryMode,
    DelayedHostCopy,
    FutureTensors,
)


def test_staged_values_do_not_change_afterwards() -> None:
    counter = torch.zeros(2, dtype=torch.int64)
    pipe = DelayedHostCopy()
    assert pipe.take() is None
    pipe.stage({"counter": counter, "step": 3})
    counter += 5
    taken = pipe.take()
    assert taken is not None
    assert taken["counter"].tolist() == [0, 0]
    assert taken["step"] == 3
    assert pipe.take() is None


def test_staging_twice_keeps_the_last() -> None:
    pipe = DelayedHostCopy()
    pipe.stage({"n": torch.tensor([1])})
    pipe.stage({"n": torch.tensor([2])})
    taken = pipe.take()
    assert taken is not None
    assert taken["n"].tolist() == [2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_copies_of_device_tensors_on_a_side_stream() -> None:
    counter = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
    future = FutureTensors.device_to_host({"counter": counter}, stream=torch.cuda.Stream())
    counter += 5
    host = future.wait()["counter"]
    assert host.device.type == "cpu"
    assert not bool(host.any())


def test_mode_none_installs_no_manager() -> None:
    with pytest.raises(ValueError, match="mode none installs no manager"):
        CanaryManager(
            config=CanaryConfig(mode=CanaryMode.NONE),
            groups=[full_group()],
            capacities=SMALL,
            req_to_token=torch.zeros((4, 16), dtype=torch.int32),
            backend=get_backend("reference"),
        )
