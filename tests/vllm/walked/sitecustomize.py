"""On the path of a server's processes: each engine core is walked after every step, and says at its end what was found.

``KVLEDGER_WALKED`` names the folder for it: one JSON file for each engine core. With ``WALKED_ASYNC`` steps are
scheduled asynchronously; after ``WALKED_CLOCK_FAILS`` looks at it the clock of each worker process fails.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import asynchronous
import walk

from ledger.hook.vllm import scheduler, workers
from ledger.hook.vllm.recorder import Recorder
from ledger.outbox.drain import Outbox

walkers = []
batches = []
walk.install(walkers)
emit, closed = Outbox.emit, Recorder.closed


def taken(self, batch):
    batches.append(batch)
    emit(self, batch)


def parts():
    """Count and sum of the times of steps, by phase, shard and method."""
    found = {}
    for batch in batches:
        for one in batch.histograms:
            if one.name == "step_latency_us":
                labels = dict(one.labels)
                key = " ".join(filter(None, (labels["phase"], labels.get("shard"), labels.get("method"))))
                count, total = found.get(key, (0, 0))
                found[key] = (count + one.count, total + one.total)
    return found


def written(self, reason):
    closed(self, reason)
    records = [record for batch in batches for record in batch.requests]
    opened = [pool for batch in batches for pool in batch.opens]
    (Path(os.environ["KVLEDGER_WALKED"]) / f"{os.getpid()}.json").write_text(
        json.dumps(
            {
                "engine": self.meter.source.engine,
                "steps": sum(walker.steps for walker in walkers),
                "differences": [one for walker in walkers for one in walker.differences],
                "faults": dict(self.meter.faults),
                "shards": [[shard.dp, shard.pp, shard.tp] for pool in opened for shard in pool.shards],
                "requests": len(records),
                "prompt": sum(record.prompt_tokens for record in records),
                "output": sum(record.tokens.output for record in records),
                "parts": parts(),
                "tenants": sorted({record.dims.tenant for record in records}),
            }
        )
    )


Outbox.emit, Recorder.closed = taken, written

attach, make = scheduler.attach, workers.WallTimes.__init__
looks = itertools.count()


def attach_and_switch():
    attach()
    asynchronous.switch_on()


def failing_clock():
    if next(looks) >= int(os.environ["WALKED_CLOCK_FAILS"]):
        raise RuntimeError("planted: no clock")
    return time.perf_counter_ns()


if "WALKED_ASYNC" in os.environ:
    scheduler.attach = attach_and_switch
if "WALKED_CLOCK_FAILS" in os.environ:
    workers.WallTimes.__init__ = lambda self, tell, **more: make(self, tell, now_ns=failing_clock, **more)
