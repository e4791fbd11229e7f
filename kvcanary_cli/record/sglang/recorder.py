"""The recorder of one SGLang process: from its scheduler on, until a fault or its end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.patching import Hook

log = logging.getLogger("kvcanary.record")


class SglangRecorder(Recorder):
    """Places the hooks, and makes a ``Follower`` when the scheduler is there."""

    def __init__(self, options: RecordOptions) -> None:
        super().__init__(options)
        self._initialising = False

    def _hooks(self) -> Sequence[Hook]:
        from kvcanary_cli.record.sglang.hooks import hooks_of

        return hooks_of(self)

    def scheduler_begins(self, *_args: Any, **_kwargs: Any) -> None:
        """A scheduler is being built: what it forwards meanwhile is warm-up."""
        self._initialising = True

    def scheduler_built(
        self, _token: Any, _result: Any, raised: bool, scheduler: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """The scheduler of this process is ready for requests."""
        self._initialising = False
        if not raised and self.follower is None:
            runner = scheduler.tp_worker.model_runner
            self._begin(
                runner,
                server_args=scheduler.server_args,
                allocator=scheduler.token_to_kv_pool_allocator,
                table_pool=scheduler.req_to_token_pool,
                is_overlapped=bool(getattr(scheduler, "enable_overlap", False)),
                mid_run=False,
            )

    def late(self, runner: Any) -> None:
        """A forward of a scheduler that was there before the recorder."""
        if self.follower is None and not self._initialising and not runner.is_draft_worker:
            self._begin(
                runner,
                server_args=runner.server_args,
                allocator=runner.token_to_kv_pool_allocator,
                table_pool=runner.req_to_token_pool,
                is_overlapped=not getattr(runner.server_args, "disable_overlap_schedule", True),
                mid_run=True,
            )

    def _begin(
        self,
        runner: Any,
        *,
        server_args: Any,
        allocator: Any,
        table_pool: Any,
        is_overlapped: bool,
        mid_run: bool,
    ) -> None:
        from kvcanary_cli.record.copies import mover_of
        from kvcanary_cli.record.session import Session
        from kvcanary_cli.record.sglang.fingerprints import Fingerprints
        from kvcanary_cli.record.sglang.follow import Follower
        from kvcanary_cli.record.sglang.header import header_of
        from kvcanary_cli.record.sglang.pools import Pools

        pools = Pools.of(runner, allocator, table_pool)
        fingerprints = Fingerprints.of(pools, self.options)
        header = header_of(
            server_args,
            pools,
            self.patcher,
            has_fingerprints=fingerprints is not None,
            has_tokens=self.options.tokens != "absent",
            is_overlapped=is_overlapped,
            has_graphs=_has_graphs(runner),
        )
        mover = mover_of(pools.table)
        session = Session(self.options, header, starts_mid_run=mid_run, mover=mover)
        self.follower = Follower(session, pools, fingerprints, is_overlapped=is_overlapped)
        log.warning(
            "kvcanary: recording into %s (%s)", self.options.path, ", ".join(header["records"])
        )

    def canary_reports(
        self, _token: Any, text: Any, raised: bool, *_args: Any, **_kwargs: Any
    ) -> None:
        """The engine's own canary has found a violation, within a forward."""
        if not raised and self.follower is not None:
            self.follower.canary_said = self.follower.canary_said or str(text)


def _has_graphs(runner: Any) -> bool:
    eager = getattr(runner, "eager_runner", None)
    runners = (
        getattr(runner, f"{phase}_cuda_graph_runner", None) for phase in ("decode", "prefill")
    )
    return any(one is not None and one is not eager for one in runners)
