"""Three GPUs behind a stub, each with an engine: one leaks, the KV of one grows, one leaks in steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from batches import BLOCKS, Life
from booking import A
from nvml.stub import GIB, Stub, behind_the_binding
from serving import START, open_books

from ledger import wire
from ledger.collectors.agent import AgentLoop
from ledger.collectors.nvml import Nvml
from ledger.collectors.procfs import Processes
from ledger.core.records import PERIOD_US, Group, Origin, PoolOpen, Shard
from ledger.core.samples import Agent
from ledger.ingest import Status, accept
from ledger.store import migrate
from ledger.store.database import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ledger.core.records import Batch
    from ledger.core.samples import SampleBatch

MIB = 1024**2
SECOND, MINUTE = 1_000_000, 60_000_000
WEIGHTS, POOL, BESIDE = 15 * GIB, 40 * GIB, 2 * GIB
STEP = 200 * MIB
NAMES = ("steady-kv-leak", "kv-grows", "step-leak")


def used_at(minute: float) -> tuple[int, int, int]:
    """What each engine's process uses: 10 MiB more a minute, as its KV fills, 200 MiB more every ten minutes."""
    whole = WEIGHTS + POOL + BESIDE
    return (
        whole + int(10 * MIB * minute),
        WEIGHTS + BESIDE + POOL * held_at(minute) // BLOCKS,
        whole + int(minute // 10) * STEP,
    )


def held_at(minute: float) -> int:
    """Blocks that the second engine's requests hold: 10 more a minute."""
    return min(BLOCKS, int(100 + 10 * minute))


class Leaks:
    """Everything that reports, on a clock that goes in steps of five seconds."""

    def __init__(self, stub: Stub, folder: Path, start_us: int, send: Callable[[bytes, int], None]) -> None:
        self.stub, self.now_us, self.start_us, self._send = stub, start_us, start_us, send
        self._chain = b""
        self.driver = Nvml(proc_gpus=folder / "gpus")
        self.loop = AgentLoop(
            Agent(source_id="agent:h", origin=Origin.SIMULATED, host="h"),
            self.driver,
            Processes(root=folder / "proc"),
            self._samples,
            wall_us=lambda: self.now_us,
            mono_us=lambda: self.now_us - start_us,
        )
        self._lives = [Life(engine=name, start_us=start_us) for name in NAMES]
        self._engines = [self._periods(number, life) for number, life in enumerate(self._lives)]

    def run(self, minutes: int) -> None:
        """Live so much longer."""
        until_us = self.now_us + minutes * MINUTE
        while self.now_us < until_us:
            minute = (self.now_us - self.start_us) / MINUTE
            for number, used in enumerate(used_at(minute)):
                self.stub[number].put({100 + number: used, 7: GIB}, rest=GIB)
            self.loop.step()
            self.now_us += 5 * SECOND
            if (self.now_us - self.start_us) % PERIOD_US == 0:
                for engine in self._engines:
                    next(engine)
        self.loop.step()

    def _samples(self, batch: SampleBatch) -> None:
        raw = wire.encode(batch, self._chain)
        self._chain = wire.digest_of(raw)
        self._send(raw, self.now_us)

    def _periods(self, number: int, life: Life) -> Iterator[None]:
        first = True
        while True:
            minute = (life.now_us - self.start_us) / MINUTE
            held = held_at(minute) if number == 1 else 400
            batch = life.period({A: (held, 0)}, standing=first or life.now_us % (60 * MINUTE) == 0)
            self._send(life.send(_opened(batch, number) if first else batch), life.now_us)
            first = False
            yield


def _opened(batch: Batch, number: int) -> Batch:
    rank = Shard(gpu_uuid=f"GPU-{number}", gpu_model="A100", pid=100 + number, kv_bytes=POOL, weights_bytes=WEIGHTS)
    opened = PoolOpen(
        pool="gpu", at_us=batch.start_us, blocks=BLOCKS, groups=(Group(block_size=16),), shards=(rank,), model="m"
    )
    return replace(batch, opens=(opened,))


@pytest.fixture(scope="session")
def leaked(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A ledger with forty minutes of the three, and the time at its end."""
    folder = tmp_path_factory.mktemp("leaks")
    database = connect(f"sqlite:///{folder / 'books.db'}", durable=False)
    migrate.upgrade(database)
    open_books(database)

    def send(raw: bytes, at_us: int) -> None:
        outcome = accept(database, raw, at_us)
        assert outcome.status is Status.ACCEPTED, outcome.refusal

    with pytest.MonkeyPatch.context() as patch:
        stub = next(behind_the_binding(nvml_library, folder, patch))
        stub.add()
        leaks = Leaks(stub, folder, START, send)
        leaks.run(40)
        leaks.driver.close()
    database.close()
    return folder / "books.db", leaks.now_us
