"""How long a step takes: a linear model in what the step does, integers throughout.

``fixed + prefill tokens + attention pairs + decoding sequences + KV tokens read``. A decode step of a dense
transformer reads all weights once (fixed) and the KV of every running sequence once; a prefill is bound by
arithmetic, linear in its tokens and in (query, context) pairs. The figures of one machine are fitted by
``bench/calibrate.py``; docs/reference-engine.md states the error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Coefficients in nanoseconds and picoseconds; :meth:`step_us` is at least 1 µs."""

    name: str
    fixed_ns: int
    per_prefill_token_ns: int
    per_prefill_pair_ps: int
    """For each prompt token and each token that it attends to."""
    per_sequence_ns: int
    """For each sequence in the step that decodes."""
    per_kv_token_ps: int
    """For each token of context that a decoding sequence reads."""

    def step_us(self, *, prefill_tokens: int, prefill_pairs: int, sequences: int, kv_tokens: int) -> int:
        """Microseconds of a step that prefills so much, with so many decoding sequences over so much context."""
        picoseconds = (
            1000 * (self.fixed_ns + self.per_prefill_token_ns * prefill_tokens + self.per_sequence_ns * sequences)
            + self.per_prefill_pair_ps * prefill_pairs
            + self.per_kv_token_ps * kv_tokens
        )
        return max(1, picoseconds // 1_000_000)


RTX_4090_LLAMA_8B = LatencyModel(
    name="RTX 4090, Llama-3.1-8B bf16, vLLM 0.19",
    fixed_ns=17_000_000,
    per_prefill_token_ns=110_000,
    per_prefill_pair_ps=3_000,
    per_sequence_ns=30_000,
    per_kv_token_ps=140_000,
)

LARGE_MODEL = LatencyModel(
    name="invented: 2 T parameters in 8 bits, read at 8 TB/s",
    fixed_ns=250_000_000,
    per_prefill_token_ns=400_000,
    per_prefill_pair_ps=200,
    per_sequence_ns=60_000,
    per_kv_token_ps=40_000,
)
"""Slow on purpose: a simulated day of it is a moderate number of steps."""
