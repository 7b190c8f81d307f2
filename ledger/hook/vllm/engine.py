"""An engine of vLLM as the books see it: its name, its boot, its pool, and the thread that keeps its periods cut.

Invariant: whatever of this cannot be found out is left out (a GPU's identity, say), never guessed.
"""

from __future__ import annotations

import functools
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import ledger.hook.vllm as plugin
from ledger.core.records import Boot, Group, GroupKind, Origin, Shard, Source
from ledger.hook.meter import Meter
from ledger.hook.settings import load_or_off, outbox_of
from ledger.hook.vllm import ending, sleep
from ledger.hook.vllm.guard import log
from ledger.hook.vllm.recorder import Recorder
from ledger.hook.vllm.timing import Ranks
from ledger.limits import CLOCK_STEP_US_MAX, OUTBOX_PAUSE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.hook.pool import PoolMeter
    from ledger.hook.settings import HookSettings

POOL: Final = "gpu"
"""The name of the pool that pays: vLLM has one on the device."""

_KINDS: Final = {
    "FullAttentionManager": GroupKind.FULL,
    "SlidingWindowManager": GroupKind.SLIDING,
    "ChunkedLocalAttentionManager": GroupKind.SLIDING,
}
"""The managers whose ways with blocks the hook knows."""

BEHIND_US: Final = 1_000_000
"""How far behind the clock an idle engine's periods are cut, so that an event that is just being told is not late."""


def recorder_of(scheduler: Any) -> Recorder | None:
    """A recorder attached to a new scheduler; None, and a line why, where there is none. Never raises."""
    try:
        ending.watch()
        return _recorder_of(scheduler)
    except Exception:  # noqa: BLE001 - a guest: whatever it is, it ends here
        log.exception("kvledger: the hook could not attach to the scheduler; the engine goes on without it")
        return None


def _recorder_of(scheduler: Any) -> Recorder | None:
    settings = load_or_off()
    if not settings.enabled:
        return None
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    strange = sorted({type(manager).__name__ for manager in managers} - set(_KINDS))
    if strange or not managers:
        log.warning(
            "kvledger: the model's KV cache (%s) is none that the hook can account for yet (docs/vllm.md lists them); "
            "the engine goes on without it",
            ", ".join(strange) or "it has none",
        )
        return None
    # The meter classifies prompts by its group 0, whose table should be whole: full attention, where there is one.
    order = sorted(range(len(managers)), key=lambda i: _KINDS[type(managers[i]).__name__] is not GroupKind.FULL)
    number_of = [order.index(group) for group in range(len(managers))]
    source = _source(scheduler.vllm_config, settings)
    mono_us, wall_us = time.monotonic_ns() // 1000, time.time_ns() // 1000
    outbox = outbox_of(settings)
    boot = _boot(wall_us - mono_us, plugin.started_mono_ns // 1000)
    recorder = Recorder(
        scheduler,
        Meter(source, boot, outbox.emit, settle_later=True),
        functools.partial(_open, scheduler, [managers[group] for group in order]),
        order=number_of,
        model=_model(scheduler.vllm_config),
        handover_key=settings.handover_key,
        outbox=outbox,
        ranks=_ranks(scheduler.vllm_config),
    )
    recorder.watch.watch()
    sleep.watch(recorder)
    outbox.attach(recorder.meter, Heartbeat(recorder))
    outbox.start()
    return recorder


def _open(scheduler: Any, managers: Sequence[Any], meter: Meter, t_us: int) -> PoolMeter:
    config = scheduler.vllm_config
    return meter.open(
        t_us,
        POOL,
        blocks=scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,
        groups=[Group(block_size=one.block_size, kind=_KINDS[type(one).__name__]) for one in managers],
        shards=_shards(config),
        model=_model(config),
        lookahead_tokens=scheduler.num_lookahead_tokens,
    )


class Heartbeat:
    """What the drain thread does every second: cuts an idle engine's periods, watches the clock, tells new faults."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: set[str] = set()

    def __call__(self) -> None:
        """Once a second, on the drain thread."""
        meter = self._recorder.meter
        self._recorder.drain(time.monotonic_ns() // 1000 - BEHIND_US, _rest)
        mono_us, wall_us = time.monotonic_ns() // 1000, time.time_ns() // 1000
        skew_us = meter.boot.anchor_us + mono_us - wall_us
        with meter.lock:
            if abs(skew_us) > CLOCK_STEP_US_MAX:
                # The clock was set: a new boot with a new anchor, that carries everything over.
                self._recorder.meter = meter.successor(mono_us, _boot(wall_us - mono_us, mono_us))
                return
            meter.skew_us = skew_us
            meter.advance(mono_us - BEHIND_US)
        for reason in meter.faults.keys() - self._told:
            self._told.add(reason)
            log.warning("kvledger: the meter cannot make sense of an event: %s; see docs/hook.md", reason)


def _rest() -> None:
    time.sleep(OUTBOX_PAUSE_S)


def _ranks(config: Any) -> Ranks:
    parallel = config.parallel_config
    return Ranks(config.instance_id, dp=parallel.data_parallel_index, ranks=parallel.world_size)


def _boot(anchor_us: int, started_mono_us: int) -> Boot:
    return Boot(boot_id=uuid.uuid4().hex, anchor_us=anchor_us, started_us=anchor_us + started_mono_us)


def _source(config: Any, settings: HookSettings) -> Source:
    host = settings.host or socket.gethostname()
    name = settings.engine or f"{host}/{_model(config)}"
    # In a rank's own process the data-parallel size is 1 and the rank 0 for most models; the index is the rank's.
    if rank := config.parallel_config.data_parallel_index:
        name = f"{name}/dp{rank}"
    return Source(
        engine=name,
        origin=Origin.LIVE,
        cluster=settings.cluster,
        namespace=settings.namespace,
        pod=settings.pod,
        host=host,
        software=f"vllm {_version()}",
    )


def _version() -> str:
    from vllm.version import __version__ as version  # noqa: PLC0415 - the engine's own

    return str(version)


def _model(config: Any) -> str:
    served = config.model_config.served_model_name
    return str(served if isinstance(served, str) else served[0]) if served else str(config.model_config.model)


def _shards(config: Any) -> tuple[Shard, ...]:
    """One for each rank, with the GPU under it where the platform says."""
    parallel = config.parallel_config
    ranks = [(pp, tp) for pp in range(parallel.pipeline_parallel_size) for tp in range(parallel.tensor_parallel_size)]
    first = (parallel.data_parallel_rank_local or 0) * len(ranks)
    return tuple(
        Shard(dp=parallel.data_parallel_index, pp=pp, tp=tp, gpu_uuid=uuid_, gpu_model=model)
        for place, (pp, tp) in enumerate(ranks)
        for uuid_, model in [_gpu(first + place)]
    )


def _gpu(device: int) -> tuple[str, str]:
    from vllm.platforms import current_platform  # noqa: PLC0415 - the engine's own

    if not current_platform.is_cuda_alike():
        return "", ""
    return _asked(current_platform.get_device_uuid, device), _asked(current_platform.get_device_name, device)


def _asked(ask: Callable[[int], Any], device: int) -> str:
    try:
        return str(ask(device))
    except Exception:  # noqa: BLE001 - another node's GPU, or a driver that does not say: absent, not wrong
        log.debug("kvledger: no answer about device %d", device, exc_info=True)
        return ""
