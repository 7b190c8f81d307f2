"""Dynamo's HTTP front-end: requests as clients see them. Its workers expose their engine's own names beside."""

from __future__ import annotations

from typing import Final

from ledger.collectors.readings import Figure
from ledger.collectors.sources import US, At, Rule, Source

DYNAMO: Final = Source(
    kind="dynamo",
    title="Dynamo front-end",
    seen="names looked up; no front-end was run",
    prefixes=("dynamo_",),
    models=("model",),
    rules=(
        Rule(
            figure=Figure.RUNNING, at=At(("dynamo_frontend_inflight_requests",)),
            minus=At(("dynamo_frontend_queued_requests",)),
            note="in flight less those without a first token; of all workers behind it",
        ),
        Rule(
            figure=Figure.WAITING, at=At(("dynamo_frontend_queued_requests",)), note="until the first token has come",
        ),
        Rule(figure=Figure.PROMPT, at=At(("dynamo_frontend_input_sequence_tokens_sum",))),
        Rule(figure=Figure.CACHED, at=At(("dynamo_frontend_cached_tokens_sum",))),
        Rule(
            figure=Figure.OUTPUT,
            at=At(("dynamo_frontend_output_tokens_total", "dynamo_frontend_output_sequence_tokens_sum")),
        ),
        Rule(figure=Figure.FINISHED, at=At(("dynamo_frontend_requests_total",)), by="status"),
        Rule(figure=Figure.FIRST_TOKEN, at=At(("dynamo_frontend_time_to_first_token_seconds",)), scale=US),
        Rule(figure=Figure.INTER_TOKEN, at=At(("dynamo_frontend_inter_token_latency_seconds",)), scale=US),
        Rule(figure=Figure.END_TO_END, at=At(("dynamo_frontend_request_duration_seconds",)), scale=US),
    ),
    unused=(
        ("dynamo_frontend_disconnected_clients", "clients that went away; what the engine made of it is not told"),
        ("dynamo_frontend_kv_hit_rate", "a guess of the router, before the engine looks"),
    ),
)  # fmt: skip
