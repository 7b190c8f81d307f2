"""SGLang: both label schemes (`name`, `model_name`), and ranks that tell the same requests again."""

from __future__ import annotations

from typing import Final

from ledger.collectors.readings import Figure
from ledger.collectors.sources import PPM, US, At, Rule, Source

_CAPACITY: Final = At(("sglang:max_total_num_tokens",))


def _latency(figure: Figure, *names: str) -> Rule:
    return Rule(figure=figure, at=At(names), scale=US)


SGLANG: Final = Source(
    kind="sglang",
    title="SGLang",
    seen="texts of 2024-11 and 2025, newer names looked up",
    prefixes=("sglang:",),
    models=("model_name", "name"),
    rank="dp_rank",
    # Tensor, pipeline, expert and context ranks run the same requests; with metrics of all schedulers each says so.
    copied=("tp_rank", "pp_rank", "moe_ep_rank", "cp_rank", "attn_cp_rank", "attn_tp_rank", "pid"),
    sums=("priority",),
    rounded=True,
    rules=(
        Rule(
            figure=Figure.RUNNING, at=At(("sglang:num_running_reqs", "sglang:num_requests_running")),
            note="of one rank where several tell the same",
        ),
        Rule(
            figure=Figure.WAITING,
            at=At(("sglang:num_queue_reqs", "sglang:num_requests_waiting", "sglang:queue_req")),
        ),
        Rule(
            figure=Figure.KV_ACTIVE, at=At(("sglang:kv_used_tokens", "sglang:num_used_tokens")), over=_CAPACITY,
            note="what can be evicted is not in it",
        ),
        Rule(
            figure=Figure.KV_ACTIVE, at=At(("sglang:token_usage",)), scale=PPM,
            note="two decimals; what can be evicted is not in it, so 2 % may be shown while 72 % are taken",
        ),
        Rule(figure=Figure.KV_CACHED, at=At(("sglang:kv_evictable_tokens",)), over=_CAPACITY),
        Rule(figure=Figure.KV_CAPACITY, at=_CAPACITY),
        Rule(figure=Figure.PROMPT, at=At(("sglang:prompt_tokens_total",))),
        Rule(figure=Figure.CACHED, at=At(("sglang:cached_tokens_total",))),
        Rule(figure=Figure.OUTPUT, at=At(("sglang:generation_tokens_total",))),
        Rule(
            figure=Figure.PREEMPTIONS, at=At(("sglang:num_retracted_requests_total",)),
            note="`num_retracted_reqs` is a gauge that falls back to 0",
        ),
        Rule(figure=Figure.FINISHED, at=At(("sglang:num_requests_total",)), reason="finished"),
        Rule(figure=Figure.FINISHED, at=At(("sglang:num_aborted_requests_total",)), reason="abort"),
        _latency(Figure.QUEUE, "sglang:queue_time_seconds", "sglang:waiting_request_latency_seconds"),
        _latency(Figure.FIRST_TOKEN, "sglang:time_to_first_token_seconds"),
        _latency(Figure.INTER_TOKEN, "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        _latency(Figure.END_TO_END, "sglang:e2e_request_latency_seconds"),
    ),
    unused=(
        ("sglang:cache_hit_rate", "of the last batch, and a percentage in some versions: no denominator"),
        ("sglang:gen_throughput", "an average of the engine's own, which the counters give"),
        ("sglang:new_token", "of the last batch"),
        ("sglang:new_seq", "of the last batch"),
        ("sglang:cached_token", "of the last batch"),
        ("sglang:num_retracted_reqs", "a gauge that falls back to 0 after each report"),
    ),
)  # fmt: skip
