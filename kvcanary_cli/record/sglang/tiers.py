"""KV that moves between slots, and between the device and the host's cache (HiCache)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.shadows import to_host

if TYPE_CHECKING:
    from kvcanary_cli.record.sglang.scene import Scene

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
        src, dst = to_host(src_loc), to_host(tgt_loc)
        # Unused entries of the engine's buffers move the padding slot onto itself.
        moved = (src != 0) & (dst != 0) & (src != dst)
        if moved.any():
            event = {"kind": "copy", "src": src[moved].tolist(), "dst": dst[moved], "via": "d2d"}
            if name != "full":
                event |= {"src_pool": name, "dst_pool": name}
            self._scene.session.emit({**event, "canary": True})

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
        host = to_host(host_indices)
        event = {"kind": "copy", "src": host.tolist(), "src_pool": "store", "dst": host}
        self._scene.session.emit({**event, "dst_pool": _HOST["full"], "via": "load"})

    def _copy(self, transfer: Any, via: str) -> None:
        pool = None if transfer.is_draft else self._pool_of(transfer.device_pool)
        if pool is None or transfer.device_indices is None or not len(transfer.device_indices):
            return
        device, host = to_host(transfer.device_indices), to_host(transfer.host_indices)
        self._number += 1
        name = f"{via}-{self._number}"
        emit = self._scene.session.emit
        if via == "d2h":
            copy = {"src": device.tolist(), "src_pool": pool, "dst": host, "dst_pool": _HOST[pool]}
        else:
            copy = {"src": host.tolist(), "src_pool": _HOST[pool], "dst": device, "dst_pool": pool}
        window = {} if pool != "full" else {"slots": device}
        emit({"kind": "transfer_begin", "id": name, "via": via, **window})
        emit({"kind": "copy", **copy, "id": name, "via": via, "canary": True})
        emit({"kind": "transfer_end", "id": name})

    def _pool_of(self, pool: Any) -> str | None:
        pools = self._scene.pools
        if pool is pools.kv_full or pool is pools.kv:
            return "full"
        return "swa" if pools.kv_swa is not None and pool is pools.kv_swa else None
