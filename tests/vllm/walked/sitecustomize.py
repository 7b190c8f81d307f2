"""On the path of a server's processes: each engine core is walked after every step, and says at its end what was found.

``KVLEDGER_WALKED`` names the folder for it: one JSON file for each engine core.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import walk

from ledger.hook.vllm.recorder import Recorder
from ledger.outbox.drain import Outbox

walkers = []
batches = []
walk.install(walkers)
emit, closed = Outbox.emit, Recorder.closed


def taken(self, batch):
    batches.append(batch)
    emit(self, batch)


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
                "tenants": sorted({record.dims.tenant for record in records}),
            }
        )
    )


Outbox.emit, Recorder.closed = taken, written
