"""A connector of vLLM that moves nothing, and keeps blocks as one that sends them would.

A run that names ``HoldingConnector`` as its connector uses it.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

#: Steps that the blocks of a request are kept for behind its end.
STEPS = 5


class HoldingConnector(KVConnectorBase_V1):
    """Asks for every request's blocks, and names it as sent some steps later."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._left: dict[str, int] = {}

    # The scheduler's side.

    def get_num_new_matched_tokens(self, *_args: Any) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, *_args: Any) -> None:
        return None

    def build_connector_meta(self, _scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, _request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return bool(block_ids), None

    # The worker's side.

    def start_load_kv(self, *_args: Any, **_kwargs: Any) -> None:
        return None

    def wait_for_layer_load(self, _layer_name: str) -> None:
        return None

    def save_kv_layer(self, *_args: Any, **_kwargs: Any) -> None:
        return None

    def wait_for_save(self) -> None:
        return None

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], None]:
        self._left = {req: left - 1 for req, left in self._left.items()}
        sent = {req for req, left in self._left.items() if left <= 0}
        self._left = {req: left for req, left in self._left.items() if req not in sent}
        self._left |= dict.fromkeys(finished_req_ids, STEPS)
        return sent, None
