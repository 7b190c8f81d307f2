"""Why a batch is not taken: every reason by name. docs/wire.md lists the same, and a test compares the two.

The names are counted, alerted on and shown to people, so they stay as they are once released.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A reason for a :class:`~ledger.errors.Refusal` of a batch."""

    # What the bytes say by themselves.
    TOO_LARGE = "too_large"
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    NOT_CANONICAL = "not_canonical"
    DUPLICATE_KEY = "duplicate_key"
    UNKNOWN_VERSION = "unknown_version"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    NOT_A_NUMBER = "not_a_number"
    NOT_AN_INTEGER = "not_an_integer"
    NEGATIVE = "negative"
    SENTINEL = "sentinel"
    OUT_OF_BOUNDS = "out_of_bounds"
    BAD_TEXT = "bad_text"
    TOO_LONG = "too_long"
    TOO_MANY = "too_many"
    UNKNOWN_WORD = "unknown_word"
    BAD_INDEX = "bad_index"
    DIGEST_MISMATCH = "digest_mismatch"
    # What one batch shows of the laws.
    BAD_PERIOD = "bad_period"
    POOL_SUM = "pool_sum"
    GROUP_SUM = "group_sum"
    SESSION_SUM = "session_sum"
    STEP_SUM = "step_sum"
    PROMPT_SUM = "prompt_sum"
    USE_SUM = "use_sum"
    STANDING_SUM = "standing_sum"
    HISTOGRAM_SUM = "histogram_sum"
    BAD_ORDER = "bad_order"
    BAD_TOKENS = "bad_tokens"
    UNKNOWN_POOL = "unknown_pool"
    TWO_PAYING = "two_paying"
    DUPLICATE_ROW = "duplicate_row"
    UNKNOWN_GPU = "unknown_gpu"
    BAD_SPREAD = "bad_spread"
    DERIVED_OUTCOME = "derived_outcome"
    # What the ledger knows beside it.
    FROM_THE_FUTURE = "from_the_future"
    TOO_OLD = "too_old"
    OTHER_ORIGIN = "other_origin"
    OTHER_BOOT = "other_boot"
    KEY_REUSED = "key_reused"
    BROKEN_CHAIN = "broken_chain"
    TIME_REVERSED = "time_reversed"


class Note(StrEnum):
    """What is counted beside refusals, in the same table: answers that changed something else than rows."""

    QUARANTINE_DROPPED = "quarantine_dropped"
