"""llama.cpp's server (started with `--metrics`): one process, no labels."""

from __future__ import annotations

from typing import Final

from ledger.collectors.readings import Figure
from ledger.collectors.sources import PPM, At, Rule, Source

LLAMACPP: Final = Source(
    kind="llamacpp",
    title="llama.cpp",
    seen="names looked up; no server was run",
    prefixes=("llamacpp:",),
    rules=(
        Rule(figure=Figure.RUNNING, at=At(("llamacpp:requests_processing",))),
        Rule(figure=Figure.WAITING, at=At(("llamacpp:requests_deferred",))),
        Rule(
            figure=Figure.KV_ACTIVE, at=At(("llamacpp:kv_cache_usage_ratio",)), scale=PPM,
            note="what is kept for reuse is in it; newer versions do not give it",
        ),
        Rule(figure=Figure.COMPUTED, at=At(("llamacpp:prompt_tokens_total",)), note="without those that a slot kept"),
        Rule(figure=Figure.CACHED, at=At(("llamacpp:prompt_tokens_cached_total",)), note="newer versions"),
        Rule(figure=Figure.OUTPUT, at=At(("llamacpp:tokens_predicted_total",))),
    ),
    unused=(
        ("llamacpp:prompt_seconds_total", "a sum without a histogram"),
        ("llamacpp:tokens_predicted_seconds_total", "a sum without a histogram"),
        ("llamacpp:prompt_tokens_seconds", "an average of the engine's own, which the counters give"),
        ("llamacpp:predicted_tokens_seconds", "an average of the engine's own, which the counters give"),
        ("llamacpp:kv_cache_tokens", "tokens in the cache, without how many fit"),
        ("llamacpp:n_decode_total", "calls of the model"),
        ("llamacpp:n_busy_slots_per_decode", "an average since the start"),
        ("llamacpp:n_tokens_max", "the largest context that was seen"),
    ),
)  # fmt: skip
