"""KV that moves between slots, and between the device and the host's cache (HiCache)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.record.sglang.scene import Scene

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

#: Pool of slots on the host behind each device pool.
_HOST = {"full": "host", "swa": "host_swa"}


class Tiers:
    """Turns copies outside a forward into events.

    A backup or load is told as a whole when it is queued: SGLang has its streams wait for each
    other, so that everything queued later runs behind it.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._number = 0

    def on_move(
        self, _token: Any, _res: Any, raised: bool, pool: Any, tgt_loc: Any, src_loc: Any
    ) -> None:
        """KV was moved within the pool, as accepted drafts are."""
        name = self._pool_of(pool)
        if raised or name is None:
            return

        def moves(src: Ints, dst: Ints) -> list[Event]:
            # Unused entries of the engine's buffers move the padding slot onto itself.
            moved = (src != 0) & (dst != 0) & (src != dst)
            if not moved.any():
                return []
            event: Event = {"kind": "copy", "src": src[moved].tolist(), "dst": dst[moved]}
            event["via"] = "d2d"
            if name != "full":
                event |= {"src_pool": name, "dst_pool": name}
            return [{**event, "canary": True}]

        self._scene.session.defer(moves, src_loc, tgt_loc)

    def on_backup(
        self, _token: Any, _res: Any, raised: bool, _engine: Any, transfers: Any, **_kw: Any
    ) -> None:
        """Device to host was queued."""
        if not raised:
            for transfer in transfers:
                self._copy(transfer, "d2h")

    def on_load(
        self, _token: Any, _res: Any, raised: bool, _engine: Any, transfers: Any, **_kw: Any
    ) -> None:
        """Host to device was queued."""
        if not raised:
            for transfer in transfers:
                self._copy(transfer, "h2d")

    def on_prefetch_alloc(
        self, _token: Any, host_indices: Any, raised: bool, *_args: Any, **_kwargs: Any
    ) -> None:
        """Host slots were taken for KV from the storage behind, which the trace does not know."""
        if raised or host_indices is None or not len(host_indices):
            return

        def taken(host: Ints) -> list[Event]:
            event = {"kind": "copy", "src": host.tolist(), "src_pool": "store", "dst": host}
            return [{**event, "dst_pool": _HOST["full"], "via": "load"}]

        self._scene.session.defer(taken, host_indices)

    def _copy(self, transfer: Any, via: str) -> None:
        pool = None if transfer.is_draft else self._pool_of(transfer.device_pool)
        if pool is None or transfer.device_indices is None or not len(transfer.device_indices):
            return
        self._number += 1
        name = f"{via}-{self._number}"

        def copied(device: Ints, host: Ints) -> list[Event]:
            here, there = (device, pool), (host, _HOST[pool])
            source, target = (here, there) if via == "d2h" else (there, here)
            copy: Event = {"src": source[0].tolist(), "src_pool": source[1]}
            copy |= {"dst": target[0], "dst_pool": target[1]}
            window = {} if pool != "full" else {"slots": device}
            return [
                {"kind": "transfer_begin", "id": name, "via": via, **window},
                {"kind": "copy", **copy, "id": name, "via": via, "canary": True},
                {"kind": "transfer_end", "id": name},
            ]

        self._scene.session.defer(copied, transfer.device_indices, transfer.host_indices)

    def _pool_of(self, pool: Any) -> str | None:
        pools = self._scene.pools
        if pool is pools.kv_full or pool is pools.kv:
            return "full"
        return "swa" if pools.kv_swa is not None and pool is pools.kv_swa else None
