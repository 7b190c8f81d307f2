"""Any `/metrics` text is read line by line: one bad line costs itself and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import limits
from ledger.collectors.exposition import parse


def test_a_sample_has_its_name_labels_value_and_line() -> None:
    text = parse(b'# HELP a b\n# TYPE a gauge\n\na{x="1",y="2"} 3.5e2\nb 7 1700000000000\n')
    (a,), (b,) = text.of("a"), text.of("b")
    assert (a.labels, a.value, a.line) == ({"x": "1", "y": "2"}, 350.0, 4)
    assert (b.labels, b.value, b.line) == ({}, 7.0, 5)
    assert (text.bad_lines, text.repeated, text.lines) == (0, 0, 5)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'a{gpu="0",...,modelName="L40S"} 405', "labels that cannot be read"),
        (b'a{x="1} 2', "labels that cannot be read"),
        (b"a", "no value behind it"),
        (b'a{x="1"}', "no value behind it"),
        (b"a{} ", "no value behind it"),
        (b"a one", "no value behind it"),
        (b"a 1_000", "no value behind it"),
        (b"<html>", "no metric name at its beginning"),
        (b"5a 1", "no metric name at its beginning"),
        (b"\xff 1", "not UTF-8"),
        (b"# TYPE a", "a TYPE without a name and one of the types that there are"),
        (b"# TYPE a thermometer", "a TYPE without a name and one of the types that there are"),
    ],
)
def test_a_bad_line_is_named_and_the_good_ones_around_it_count(line: bytes, why: str) -> None:
    text = parse(b"before 1\n" + line + b"\nafter 2\n")
    assert [(bad.line, bad.why) for bad in text.bad] == [(2, why)]
    assert text.of("before")[0].value == 1
    assert text.of("after")[0].value == 2
    assert text.bad_lines == 1


def test_many_bad_lines_are_counted_and_the_first_ones_named_in_short() -> None:
    text = parse(b"x" * 1000 + b"\n" + b"<\n" * 200)
    assert text.bad_lines == 201
    assert [bad.line for bad in text.bad] == list(range(1, limits.BAD_LINES_NAMED + 1))
    assert len(text.bad[0].text) == limits.BAD_LINE_CHARS_MAX + 1


def test_of_a_series_that_is_said_twice_the_last_saying_counts() -> None:
    text = parse(b'a{x="1"} 1\na{x="2"} 2\na{x="1"} 3\n')
    assert [(s.labels["x"], s.value) for s in text.of("a")] == [("1", 3.0), ("2", 2.0)]
    assert text.repeated == 1
    assert text.families == {"a": 2}


def test_an_exemplar_behind_a_value_is_left_out() -> None:
    text = parse(b'a_bucket{le="1"} 17 # {trace_id="x"} 0.67 1700000000\n# EOF\n')
    assert text.of("a_bucket")[0].value == 17
    assert text.bad_lines == 0


def test_a_counter_keeps_the_name_that_its_engine_gave_it() -> None:
    text = parse(
        b"# TYPE nv_inference_count counter\nnv_inference_count 3\n# TYPE iteration_tokens_total histogram\n"
        b'iteration_tokens_total_bucket{le="+Inf"} 4\niteration_tokens_total_sum 9\niteration_tokens_total_count 4\n'
    )
    assert text.of("nv_inference_count")[0].value == 3
    assert text.families == {"nv_inference_count": 1, "iteration_tokens_total": 3}


def test_a_bad_line_is_bad_whether_its_name_is_wanted_or_not() -> None:
    raw = (
        b'a 1\nthis line is broken\nb{x="1",...} 2\n<html>\nb 3 1700000000000\nb{x=" # y"} -.5e-3 # {t="1"} 1\n\xff 1\n'
    )
    every, some = parse(raw), parse(raw, wanted=lambda name: name == "a")
    assert [line.line for line in some.bad] == [line.line for line in every.bad] == [2, 3, 4, 7]
    assert some.families == every.families == {"a": 1, "b": 2}


def test_names_that_are_not_wanted_are_counted_by_family_and_not_read() -> None:
    text = parse(b'# TYPE b histogram\na 1\nb_sum{x="1"} Inf\nb_count 2\n', wanted=lambda name: name == "a")
    assert set(text.samples) == {"a"}
    assert text.families == {"a": 1, "b": 2}
    assert text.bad_lines == 0


@given(st.binary(max_size=400))
def test_no_bytes_make_it_fall_over(raw: bytes) -> None:
    text = parse(raw)
    assert text.bad_lines >= len(text.bad)
    assert sum(text.families.values()) == sum(len(series) for series in text.samples.values())


@given(st.lists(st.sampled_from([b'a{x="1"} 1', b'a{x="2"} 2', b"b 3", b"# c", b"", b"{", b"b"]), max_size=40))
def test_every_line_is_a_sample_a_comment_or_named_as_bad(lines: list[bytes]) -> None:
    text = parse(b"\n".join(lines) + b"\n")
    samples = sum(line[:1] in (b"a", b"b") and line != b"b" for line in lines)
    assert text.bad_lines == lines.count(b"{") + lines.count(b"b")
    assert sum(text.families.values()) + text.repeated == samples
