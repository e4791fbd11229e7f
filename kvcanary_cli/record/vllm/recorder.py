"""The recorder of one vLLM process: from its engine core on, until a fault or its end."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.patching import Hook

log = logging.getLogger("kvcanary.record")


class VllmRecorder(Recorder):
    """Places the hooks, and makes a ``Follower`` when the engine core is there."""

    def __init__(self, options: RecordOptions) -> None:
        super().__init__(options)
        self._initialising = 0
        self._core: Any = None
        self._built: Any = None
        self._seen: Any = None
        self._runner: Any = None
        self._is_worker = False

    def _hooks(self) -> Sequence[Hook]:
        from kvcanary_cli.record.vllm.hooks import hooks_of

        return hooks_of(self)

    def core_begins(self, *_args: Any, **_kwargs: Any) -> None:
        """An engine core is being built: what it runs meanwhile is warm-up."""
        self._initialising += 1

    def core_built(
        self, _token: Any, _result: Any, raised: bool, core: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """The engine core of this process is ready for requests."""
        self._initialising -= 1
        if not raised and self.follower is None and not self._initialising:
            self._core = core
            self._begin(core.scheduler, core.model_executor, mid_run=False)

    def core_ends(self, core: Any, *_args: Any, **_kwargs: Any) -> None:
        """The engine core that is recorded shuts down, which may take longer than it is given."""
        if core is self._core:
            self.close()

    def runner_ready(
        self, _token: Any, _result: Any, raised: bool, runner: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """A model runner of this process has its KV pool."""
        if not raised:
            self._runner = runner

    def scheduler_built(
        self, _token: Any, _result: Any, raised: bool, scheduler: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """A scheduler is there that has done nothing yet."""
        if not raised:
            self._built = scheduler

    def scheduling(self, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        """A scheduler is at work. As a plugin, the recorder is loaded by an engine core that is
        being built already: its first step is where it is seen to be ready.
        """
        self._seen = scheduler
        if self.follower is None and scheduler is self._built and not self._initialising:
            self._begin(scheduler, self._runner, mid_run=False)

    def worker_begins(self, *_args: Any, **_kwargs: Any) -> None:
        """This process is a worker, and waits for what an engine core elsewhere sends it."""
        self._is_worker = True

    def worker_ends(self, *_args: Any, **_kwargs: Any) -> None:
        """The worker shuts down."""
        if self._is_worker:
            self.close()

    def warm_up_begins(self, *_args: Any, **_kwargs: Any) -> None:
        """What a worker runs meanwhile is no request's."""
        self._initialising += 1

    def warm_up_ends(self, *_args: Any, **_kwargs: Any) -> None:
        """From here on a worker runs requests."""
        self._initialising -= 1

    def late(self, runner: Any, scheduler_output: Any) -> None:
        """A step of an engine core that was there before the recorder, or is elsewhere."""
        if self.follower is not None or self._initialising:
            return
        if self._seen is not None:
            self._begin(self._seen, runner, mid_run=True)
        elif self._is_worker:
            self._begin_worker(runner, mid_run=bool(scheduler_output.scheduled_cached_reqs.req_ids))

    def _begin_worker(self, runner: Any, *, mid_run: bool) -> None:
        from kvcanary_cli.record.copies import mover_of
        from kvcanary_cli.record.session import Session
        from kvcanary_cli.record.vllm.fingerprints import Fingerprints
        from kvcanary_cli.record.vllm.header import has_embeddings
        from kvcanary_cli.record.vllm.pools import Pools
        from kvcanary_cli.record.vllm.worker_header import worker_header_of
        from kvcanary_cli.record.vllm.workers import Sent, WorkerFollower

        config, sent = runner.vllm_config, Sent()
        if config.kv_transfer_config is not None:
            self._ended = True
            log.warning(
                "kvcanary: not recording this worker: it is not told what the KV connector brings "
                "into its blocks, which would look like corruption; the engine core's trace tells"
            )
            return
        pools = Pools.of_worker(runner, sent)
        fingerprints = Fingerprints.of(pools, self.options)
        options = self.options
        if options.tokens != "absent" and has_embeddings(config):
            options = replace(options, tokens="absent")
        header = worker_header_of(
            config,
            pools,
            has_fingerprints=fingerprints is not None,
            has_tokens=options.tokens != "absent",
        )
        session = Session(options, header, starts_mid_run=mid_run, mover=mover_of(runner))
        self.follower = WorkerFollower(session, pools, fingerprints, sent)
        log.warning("kvcanary: recording into %s (%s)", options.path, ", ".join(header["records"]))

    def _begin(self, scheduler: Any, executor: Any, *, mid_run: bool) -> None:
        from kvcanary_cli.record.copies import mover_of
        from kvcanary_cli.record.session import Session
        from kvcanary_cli.record.vllm.fingerprints import Fingerprints
        from kvcanary_cli.record.vllm.follow import Follower
        from kvcanary_cli.record.vllm.header import has_embeddings, header_of, tokens_are_known
        from kvcanary_cli.record.vllm.pools import Pools

        config = scheduler.vllm_config
        pools = Pools.of(scheduler, executor)
        fingerprints = Fingerprints.of(pools, self.options)
        header = header_of(config, pools, self.patcher, has_fingerprints=fingerprints is not None)
        options, tokens_known = self.options, tokens_are_known(config)
        unknown = pools.runner is None and not tokens_known
        if options.tokens != "absent" and (unknown or has_embeddings(config)):
            log.warning(
                "kvcanary: tokens are not recorded: %s",
                "the scheduler does not know them" if unknown else "prompts may be embeddings",
            )
            options = replace(options, tokens="absent")
        if options.tokens == "absent":
            header["records"] = [f for f in header["records"] if f not in ("history", "spec")]
        mover = mover_of(pools.runner)
        # Where the model runs elsewhere, ranks are its workers'.
        name = f"core-dp{header['rank']['dp']}" if pools.why_derived else None
        session = Session(options, header, starts_mid_run=mid_run, mover=mover, name=name)
        self.follower = Follower(session, pools, fingerprints, tokens_known=tokens_known)
        if mid_run:
            self.follower.adopt()
        log.warning("kvcanary: recording into %s (%s)", options.path, ", ".join(header["records"]))
