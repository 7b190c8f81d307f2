"""Findings: what somebody should look at, written once each.

Invariant: a finding is named by its code, its subject, the start of the time it speaks of and its sentence;
finding it again writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select

from ledger.store import book_tables as t
from ledger.store.database import lock
from ledger.store.rows import append

if TYPE_CHECKING:
    from collections.abc import Iterable


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``subject`` is an asset group or an engine; the time is ``[start_us, end_us)``."""

    code: str
    severity: Severity
    subject: str
    start_us: int
    end_us: int
    detail: str


def write_findings(connection: Connection, found: Iterable[Finding], *, now_us: int) -> int:
    """Write those that are not written yet; how many they were."""
    new = 0
    for finding in found:
        lock(connection, "findings")
        key = (
            (t.findings.c.code == finding.code)
            & (t.findings.c.subject == finding.subject)
            & (t.findings.c.start_us == finding.start_us)
            & (t.findings.c.detail == finding.detail)
        )
        if connection.execute(select(t.findings.c.id).where(key)).first() is not None:
            continue
        new += 1
        append(
            connection,
            t.findings,
            {
                "code": finding.code,
                "severity": finding.severity.value,
                "subject": finding.subject,
                "start_us": finding.start_us,
                "end_us": finding.end_us,
                "detail": finding.detail,
                "noticed_us": now_us,
            },
        )
    return new


def list_findings(
    connection: Connection, *, start_us: int | None = None, end_us: int | None = None
) -> tuple[Finding, ...]:
    """Findings that speak of the time ``[start_us, end_us)``, in the order of their writing."""
    query = select(t.findings).order_by(t.findings.c.id)
    if start_us is not None:
        query = query.where(t.findings.c.end_us > start_us)
    if end_us is not None:
        query = query.where(t.findings.c.start_us < end_us)
    return tuple(
        Finding(
            code=row["code"],
            severity=Severity(row["severity"]),
            subject=row["subject"],
            start_us=row["start_us"],
            end_us=row["end_us"],
            detail=row["detail"],
        )
        for row in connection.execute(query).mappings()
    )
