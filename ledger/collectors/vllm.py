"""vLLM: V0 and V1 names, and those in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ledger.collectors.readings import Figure
from ledger.collectors.sources import PPM, US, At, Rule, Source

if TYPE_CHECKING:
    from ledger.collectors.exposition import Sample

_BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"


def _size(sample: Sample) -> tuple[int, int] | None:
    """Tokens that fit and tokens of a block, from the labels of the configuration."""
    texts = [sample.labels.get(name, "") for name in ("num_gpu_blocks", "block_size")]
    if not all(text.isascii() and text.isdigit() for text in texts):
        return None
    blocks, block_size = (int(text) for text in texts)
    # V1 (its series have an engine label) keeps block 0 for itself, and its usage is a share of the others.
    usable = blocks - 1 if "engine" in sample.labels else blocks
    return (usable * block_size, block_size) if usable > 0 and block_size else None


_PART: Final = "a part of `end_to_end`"
_SIZE: Final = "how large requests are, which the counters sum up"


def _latency(figure: Figure, *names: str) -> Rule:
    return Rule(figure=figure, at=At(names), scale=US)


VLLM: Final = Source(
    kind="vllm",
    title="vLLM",
    seen="0.32 beside its hook, a V1 text of 2026-03, names of V0",
    prefixes=("vllm:",),
    rank="engine",
    rules=(
        Rule(figure=Figure.RUNNING, at=At(("vllm:num_requests_running",))),
        Rule(
            figure=Figure.WAITING, at=At(("vllm:num_requests_waiting",)), plus=At(("vllm:num_requests_swapped",)),
            note="V0 counts those that it swapped out apart; they wait, too",
        ),
        Rule(
            figure=Figure.KV_ACTIVE, at=At(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")), scale=PPM,
            note="of the blocks but the null block; blocks kept for reuse count as free, so there is no cached share",
        ),
        Rule(figure=Figure.KV_CAPACITY, at=At(("vllm:cache_config_info",)), size=_size),
        Rule(figure=Figure.PROMPT, at=At(("vllm:prompt_tokens_total",))),
        Rule(figure=Figure.COMPUTED, at=At((_BY_SOURCE,), where=(("source", "local_compute"),))),
        Rule(figure=Figure.CACHED, at=At((_BY_SOURCE,), where=(("source", "local_cache_hit"),))),
        Rule(figure=Figure.TRANSFERRED, at=At((_BY_SOURCE,), where=(("source", "external_kv_transfer"),))),
        Rule(figure=Figure.OUTPUT, at=At(("vllm:generation_tokens_total",))),
        Rule(figure=Figure.PREEMPTIONS, at=At(("vllm:num_preemptions_total",)), note="reasons are not told"),
        Rule(figure=Figure.FINISHED, at=At(("vllm:request_success_total",)), by="finished_reason"),
        Rule(
            figure=Figure.PREFIX_QUERIES,
            at=At(("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")),
        ),
        Rule(
            figure=Figure.PREFIX_HITS, at=At(("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
            note="some versions count what was computed again after a preemption as hits",
        ),
        _latency(Figure.QUEUE, "vllm:request_queue_time_seconds"),
        _latency(Figure.FIRST_TOKEN, "vllm:time_to_first_token_seconds"),
        _latency(Figure.INTER_TOKEN, "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        _latency(Figure.END_TO_END, "vllm:e2e_request_latency_seconds"),
        Rule(
            figure=Figure.STARTED, at=At(("process_start_time_seconds", "vllm:generation_tokens_created")), scale=US,
            note="of the API server; with several of them the birth of a counter",
        ),
    ),
    unused=(
        ("vllm:gpu_prefix_cache_hit_rate", "a ratio without its denominator"),
        ("vllm:cpu_prefix_cache_hit_rate", "a ratio without its denominator"),
        ("vllm:avg_prompt_throughput_toks_per_s", "an average of the engine's own, which the counters give"),
        ("vllm:avg_generation_throughput_toks_per_s", "an average of the engine's own, which the counters give"),
        ("vllm:request_time_per_output_token_seconds", "a mean for each request, not of tokens"),
        *((f"vllm:request_{part}_time_seconds", _PART) for part in ("prefill", "decode", "inference")),
        *((f"vllm:request_{size}", _SIZE) for size in (
            "prompt_tokens", "generation_tokens", "max_num_generation_tokens", "params_max_tokens", "params_n",
            "prefill_kv_computed_tokens",
        )),
        ("vllm:request_num_preemptions", "the preemptions once more, by request"),
        ("vllm:iteration_tokens_total", "a histogram over steps, which are no figure of ours"),
        ("vllm:prompt_tokens_cached_total", "the sum of two sources that are read apart"),
        ("vllm:prompt_tokens_cached_by_source_total", "the hits of the prefix cache once more, by tier"),
        ("vllm:prompt_tokens_recomputed_total", "the last token of prompts that were wholly cached"),
        ("vllm:external_prefix_cache_queries_total", "of a KV connector; what came is `transferred_tokens`"),
        ("vllm:external_prefix_cache_hits_total", "of a KV connector; what came is `transferred_tokens`"),
        ("vllm:num_requests_waiting_by_reason", "the waiting once more, by reason"),
        ("vllm:admission_rejections_total", "requests that the engine did not take"),
        *((f"vllm:mm_cache_{what}_total", "of inputs that are no text, not of KV") for what in ("queries", "hits")),
        *((f"vllm:estimated_{what}_per_gpu_total", "an estimate, made of the model's shape")
          for what in ("flops", "read_bytes", "write_bytes")),
        ("vllm:engine_sleep_state", "whether it sleeps; it holds its GPU all the same"),
    ),
)  # fmt: skip
