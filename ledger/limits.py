"""Every bound of the project, each with a name and the reason for its figure.

A value that breaks one is answered with a named refusal or a :class:`~ledger.errors.LedgerError` that
quotes the value and the limit. The idea that everything has a limit is TigerBeetle's.
"""

from __future__ import annotations

INT_MAX = 2**63 - 1
"""What a BIGINT holds on both databases; the signed 64-bit range bounds every stored integer."""

BLANK_INT64 = 9_223_372_036_854_775_794
"""The blank value that device tools report in place of a missing 64-bit figure: absent, never a count."""

DAY_US = 86_400_000_000
"""A UTC day in microseconds: the unit of partitions and of retention."""

# --- one batch on the wire -------------------------------------------------------------------------------

BATCH_BYTES_MAX = 32 * 1024 * 1024
"""Of an encoded batch: 40 000 session rows of 400 bytes fit twice; more is a fault, and must not fill memory."""

TEXT_CHARS_MAX = 512
"""Of an identifier (tenant, session, request, pool, …): longer ones are content, which never leaves an engine."""

ROWS_MAX = 200_000
"""Rows of one kind in a batch: ten times the sessions that 15 seconds of the largest engines touch."""

DIMENSIONS_MAX = 200_000
"""Distinct dimension sets in a batch; the same bound as its rows, since a row names one."""

POOLS_MAX = 64
"""Pools of an engine (device, host memory, disk …) in one batch."""

GROUPS_MAX = 64
"""Cache groups of one pool; hybrid models have fewer than ten."""

SHARDS_MAX = 4_096
"""Ranks of one engine: beyond the largest tensor x pipeline x data parallel layouts."""

PID_MAX = 2**22
"""The largest process id that Linux gives."""

MEMORY_BYTES_MAX = 2**50
"""Memory of one device or process: a pebibyte, a thousand times the largest; more is a sentinel or a fault."""

USES_MAX = 100_000
"""Periods that one request lived through: 17 days of a request that never ends."""

BUCKETS_MAX = 4_096
"""Buckets of one histogram: 64-bit values at 2 % relative width need fewer than 2 300."""

LABELS_MAX = 16
"""Labels of one histogram; each multiplies its series."""

HOOK_REASONS_MAX = 64
"""Reasons for which a hook has dropped something or met a fault: there are some thirty of both kinds together."""

NESTING_MAX = 16
"""Levels of brackets in a batch; ours has 6. It keeps a parser from exhausting the stack."""

BLOCKS_MAX = 2**32
"""Blocks of a pool: a 1-token block of 1 byte would already be 4 GiB of block table."""

BLOCK_SIZE_MAX = 2**20
"""Slots of a block: a whole context of a million tokens in one block."""

TOKENS_MAX = 2**40
"""Tokens in one figure: a million tokens a second for twelve days; more is a sentinel or a fault."""

BLOCK_US_MAX = 2**62
"""Block or slot time in one figure: half of what a BIGINT holds, so that two may be added without overflow."""

TIME_US_MIN = 1_577_836_800_000_000
"""2020-01-01: an engine with a clock before it has not got the time yet."""

TIME_US_MAX = 4_102_444_800_000_000
"""2100-01-01: later is a unit mistaken (nanoseconds, say)."""

SKEW_US_MAX = 10 * 365 * DAY_US
"""What an engine may report as its offset to the system clock; it is shown, never used."""

SEQ_MAX = 2**40
"""Batches of one boot: 500 000 years of 15-second periods."""

PRIORITY_ABS_MAX = 2**31
"""A request's priority, either sign; engines keep it in 32 bits."""

PPM_MAX = 1_000_000
"""A share in millionths: the whole."""

# --- samples of an agent on the wire ----------------------------------------------------------------------

GPUS_MAX = 256
"""GPUs and instances that one agent sees: sixteen devices in seven instances each, twice."""

GPU_PROCESSES_MAX = 8_192
"""Processes on all GPUs of a host, each counted on every GPU that it uses: 60 on each instance of the largest hosts."""

PROCESSES_MAX = 1_024
"""Processes whose health one agent watches."""

TROUBLES_MAX = 1_024
"""Kinds of trouble in one period: a few reasons for each GPU."""

NVML_BEGINS_MAX = 8
"""Times that a driver was begun with and not ended, at most: a look that hung may leave one behind."""

READINGS_MAX = 15_000
"""Readings of a period: one each millisecond; an agent of ours takes one a second."""

THROTTLES_MAX = 64
"""Reasons why clocks are held down: one for each bit that the driver has."""

POWER_MW_MAX = 10**8
"""Power of one device in milliwatts: 100 kW, more than a rack of today draws."""

# --- the meter, beside an engine ------------------------------------------------------------------------

STEPS_IN_FLIGHT_MAX = 64
"""Steps scheduled that have not ended. Engines have one or two (pipeline parallel: one for each stage); more means that
ends are not reported."""

CUTS_WAITING_MAX = 240
"""An hour of unsettled periods; beyond it the engine's thread settles, or memory would grow without bound."""

PERIODS_AT_ONCE_MAX = 7 * 24 * 240
"""A week in one go: a longer leap of the clock is a fault, or a wrong time would keep the engine busy for ever."""

SLICE_ROWS = 16
"""Rows settled between two rests: more at a time would be felt by the engine's thread."""

LIGHT_ROWS = 64
"""The same where a row is a microsecond or two."""

SORT_ROWS = 128
"""Rows sorted between two rests, about 0.1 ms."""

PERIOD_STEPS_MAX = 1 << 18
"""Steps of a period that are written down: at 15 s a step would take 57 µs, and no engine is that fast."""

PERIOD_PHASES_MAX = PERIOD_STEPS_MAX
"""Timings of steps in a period, each of one rank: 64 ranks may report 4096 steps, which is one in 3.7 ms."""

PERIOD_SHARDS_MAX = 64
"""Ranks of an engine with step times of their own in a period, each in three histograms; the rest goes together."""

PERIOD_LABELS_MAX = 64
"""Scenario and priority pairs in a period: they come from headers, and a header may say anything."""

HOOK_FAULTS_MAX = 8
"""Faults of its own after which a hook lets go of the engine: what it says is worth less with each."""

RING_RECORDS = 4_096
"""Steps of one rank that wait to be read, 160 KB; read once a second, so an engine would need 4 000 steps a second."""

SCRIBE_S = 0.1
"""How often a worker process writes down its steps; as much is lost of them when it is killed."""

RANKS_WAIT_S = 0.2
"""How long an engine that ends waits for the last steps of its ranks; they write ten times a second."""

RING_SLICES_MAX = 64
"""Slices of a rank's steps (1 024 of them) taken at a time, so that no rank keeps the others waiting."""

RING_AGE_S_MAX = 3_600
"""A file of step times that nobody has written to for an hour is left over: those in use are deleted already."""

DEVICE_STEPS_APART = 16
"""One in so many steps is timed on a GPU: two events for each collective, hundreds of them, are work for its host."""

DEVICE_STEPS_PENDING_MAX = 8
"""Timed steps whose events the GPU has not passed yet; beyond it no more are timed until it has."""

GUARD_IDS = 64
"""Entries behind the owner list for block ids below nought: -1 and its like; a wilder id is beyond the list anyhow."""

# --- receipt ---------------------------------------------------------------------------------------------

AHEAD_US_MAX = 300_000_000
"""How far a batch may lie after its receipt (5 minutes): clocks differ; beyond, it is refused."""

BATCHES_AT_ONCE_MAX = 64
"""Batches of one transaction: a quarter of an hour of an engine that catches up, some tens of megabytes."""

SILENCE_US_MAX = 900_000_000
"""Silence after which a boot is taken for dead (15 minutes): its unanswered requests are lost."""

RETENTION_DAYS = 62
"""Days that facts are kept by default: the month that is open and the one before it can be settled again."""

QUARANTINE_ROWS_MAX = 10_000
"""Batches kept in quarantine; beyond, the oldest goes, counted."""

QUARANTINE_BYTES_MAX = 512 * 1024 * 1024
"""Bytes kept in quarantine: a database must not be filled by what it refused."""

QUARANTINE_DETAIL_CHARS_MAX = 500
"""Of the sentence kept beside a quarantined batch; it may quote what the sender wrote."""

# --- the outbox, beside an engine --------------------------------------------------------------------------

OUTBOX_QUEUE_MAX = 64
"""Periods that wait in memory to be settled (16 minutes of one engine); beyond, the new one is dropped, counted."""

OUTBOX_QUEUE_ROWS_MAX = 400_000
"""Rows of those periods together, about 400 MB in the worst case: the hook's fixed memory bound."""

OUTBOX_HOLD_BYTES_MAX = 32 * 1024 * 1024
"""Encoded batches kept in memory while the disk takes none; beyond, the oldest is dropped, counted."""

CLOCK_STEP_US_MAX = 60_000_000
"""How far an engine's wall may be from the system clock before it gets a new anchor; receivers bear five minutes."""

OUTBOX_FAULTS_MAX = 8
"""Faults in a row while settling or encoding; then the outbox switches itself off, for it is a guest."""

OUTBOX_SLICE_ROWS = 16
"""Rows encoded between two pauses: about 0.2 ms in which the GIL is held."""

OUTBOX_PAUSE_S = 0.0005
"""The pause: a bare yield would take the GIL back before the engine's thread had woken up."""

SPOOL_BYTES_MAX = 1024 * 1024 * 1024
"""Default of a spool on disk: about a week of an engine with 500 busy sessions."""

SPOOL_BYTES_MIN = 1024 * 1024
"""The least that may be set: a spool that cannot hold a few periods is none."""

SPOOL_AGE_S_MAX = 14 * 86_400
"""Default age after which a segment is dropped: well before the books' retention of facts refuses it."""

SPOOL_SEGMENT_BYTES = 8 * 1024 * 1024
"""Of one segment (one record may be larger): the grain in which a full spool loses its oldest."""

SPOOL_SEGMENTS_MAX = 65_536
"""Segments of one spool: an engine that restarts in a loop makes a small one each time; inodes are bounded, too."""

SPOOL_RECORD_BYTES_MAX = BATCH_BYTES_MAX
"""Of one record: a batch compressed is smaller than the batch."""

SEND_TIMEOUT_S = 15.0
"""For one exchange with the service from connecting to the last byte of the answer: one period."""

SEND_BACKOFF_S_MIN = 0.5
"""The first pause after a failure; each doubles, and jitter takes up to half of it away."""

SEND_BACKOFF_S_MAX = 60.0
"""The longest pause that we choose ourselves: a service that is back is found within a minute."""

SEND_RETRY_AFTER_S_MAX = 900.0
"""The longest pause that a service may ask for; more is cut to it."""

SEND_ENDPOINTS_MAX = 8
"""Addresses of the service that one engine may be given."""

ANSWER_BYTES_MAX = 64 * 1024
"""Of the service's answer to a batch; ours has 200 bytes, more comes from something else."""

IDENTITY_CHARS_MAX = 128
"""Of a tenant or session id in a header: longer than any UUID, path or e-mail address that is meant as one."""

SCENARIO_CHARS_MAX = 64
"""Of a scenario: a word or two; it becomes a label."""

IDENTITY_KEYS_MAX = 100_000
"""API keys in the map of keys to tenants: about 20 MB."""

IDENTITY_NETWORKS_MAX = 256
"""Networks that may set identity; each is looked at for every request."""

# --- files that people hand in ---------------------------------------------------------------------------

PRICE_FILE_BYTES_MAX = 16 * 1024 * 1024
"""Of a price file: the largest public catalogue has 100 000 lines of 150 bytes; more is another file."""

# --- what people read -----------------------------------------------------------------------------------

TABLE_ROWS = 40
"""Rows of a table before the rest is summed up in one: what a person still reads."""

# --- the database ----------------------------------------------------------------------------------------

STORE_ATTEMPTS_MAX = 8
"""Tries of one transaction that met a deadlock, a serialization failure or a locked database."""

STORE_BACKOFF_S_MAX = 1.0
"""The longest pause between two tries; the first is 10 ms, and each doubles with jitter."""

STORE_BUSY_MS = 10_000
"""How long SQLite waits for another writer, and PostgreSQL for a lock, before the try counts as failed."""

STORE_POOL_CONNECTIONS = 8
"""Connections that one process keeps open to PostgreSQL."""

DIMENSION_CACHE_MAX = 200_000
"""Dimension sets whose ids a process remembers (about 60 MB when full); beyond, the cache starts anew."""

DELETE_ROWS_MAX = 50_000
"""Rows deleted in one transaction of retention on SQLite: about half a second in which nobody else writes."""

# --- the service -----------------------------------------------------------------------------------------

TOKENS_KEPT_MAX = 1_000
"""Tokens in force at a time: every process keeps all of them in memory, and nobody can look after more."""

TOKEN_STALE_S = 5.0
"""How long a process trusts the tokens that it has read: a revoked one is refused within this time."""

SESSION_COOKIE_S = 7 * 86_400
"""Life of a page's login: a screen on the wall is logged in once a week."""

BATCH_BODY_BYTES_MAX = BATCH_BYTES_MAX
"""Of a batch as it travels, compressed or not: a compressed one must not be larger than what it holds."""

BODY_BYTES_MAX = 16 * 1024
"""Of any other request's body (a login): a token is 90 bytes."""

BODY_SECONDS_MAX = 30.0
"""For a body to arrive: 32 MiB at 10 Mbit/s. A slower sender gets 408 and tries again."""

INGESTS_MAX = 256
"""Batches that wait to be booked or are being booked: engines cut their periods at the same instants, so 200 engines
deliver at once. More would only wait in our memory in place of the sender's spool."""

BODIES_BYTES_MAX = 256 * 1024 * 1024
"""Of all bodies of batches that are being received or wait to be booked, as they travel: 256 large ones of a megabyte,
or eight of the largest."""

GROUP_BYTES_MAX = 8 * 1024 * 1024
"""Unpacked bytes from which no more batches join a transaction: 64 usual ones. While it is booked, a batch takes ten
times its bytes."""

CONNECTIONS_MAX = 512
"""Connections that are open at a time: 200 engines keep one each, and pages and scrapers need some."""

READS_PER_S = 50
"""Requests a second that one token may go on making; a page makes about 2."""

READS_BURST = 200
"""Requests that one token may make at once, after a pause."""

REFUSALS_BURST = 30
"""Requests without a valid token that one address may make at once."""

REFUSALS_PER_S = 0.5
"""And a second, from then on: a token cannot be guessed, but trying should not load the database."""

RATE_KEYS_MAX = 10_000
"""Tokens and addresses whose rates a process keeps; beyond, the one unseen for longest is forgotten."""

PAGE_ROWS_DEFAULT = 100
"""Rows of a page of the JSON interface, unless asked for more."""

PAGE_ROWS_MAX = 1_000
"""Rows of a page at most; CSV has up to :data:`CSV_ROWS_MAX`."""

CSV_ROWS_MAX = 100_000
"""Rows of a CSV answer: 20 MB, what a spreadsheet still opens."""

TENANT_SERIES_MAX = 50
"""Tenants with series of their own in /metrics by default; the others are added up as ``other``."""

LIVE_AGE_US_MAX = 120_000_000
"""Older batches (2 minutes) feed the ledger and not the live histograms: a spool that drains is not now."""

# --- what is scraped -------------------------------------------------------------------------------------

SCRAPE_BYTES_MAX = 8 * 1024 * 1024
"""Of a `/metrics` text: a large vLLM has 100 kB, and many adapters ten times that; more is another thing."""

BAD_LINES_NAMED = 50
"""Bad lines of a text that are named; the rest is counted."""

BAD_LINE_CHARS_MAX = 120
"""Of a bad line that is shown."""

SCRAPE_TIMEOUT_S = 5.0
"""For one scrape from connecting to the last byte: an engine whose event loop is busy answers in one or two."""

SCRAPE_INTERVAL_S = 15.0
"""Between two scrapes of one target: what people scrape engines at, and one reading for each period."""

SCRAPE_BRIDGED_US = 46_000_000
"""Scrapes further apart than three intervals leave a gap: two answers in a row may be missing."""

SCRAPE_TARGETS_MAX = 1_000
"""Targets of one ledger: 67 scrapes a second, what the threads below can do if most engines answer in 100 ms."""

SCRAPE_STRETCHES_MAX = 64
"""Stretches between scrapes that one target keeps for periods that nobody has asked for yet: a quarter of an hour."""

SCRAPE_THREADS = 16
"""Scrapes under way of targets that answered quickly the last time: 240 a second at 15 ms each, 16 if each took 1 s."""

SCRAPE_SLOW_THREADS = 8
"""And of those that did not: eight that hang for their 5 s, in turn."""

SCRAPE_SLOW_S = 1.0
"""From here on an answer is slow, and its target is asked on the threads of the slow ones the next time."""

SCRAPE_SLOW_WAITING_MAX = 24
"""Slow scrapes that wait or run: what eight threads get through in an interval if all hang; more are skipped."""

SCRAPE_ROUNDS_WAITING_MAX = 240
"""Rounds that wait for the database (an hour); beyond, the oldest is dropped, counted."""
