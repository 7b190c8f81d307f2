"""Price files: exactly what they say, or the line that cannot be used."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import pricelist
from ledger.core.money import decimal_text
from ledger.errors import UsageError
from ledger.pricelist import Capacity

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "provider,gpu,gpu_count,price_usd_per_hour_instance,price_usd_per_gpu_hour,spot_usd_per_gpu_hour"


def prices(*rows: str, header: str = HEADER) -> list[pricelist.ListedPrice]:
    return list(pricelist.parse("\n".join([header, *rows]), "list.csv"))


def complaint(*rows: str, header: str = HEADER) -> str:
    with pytest.raises(UsageError) as caught:
        prices(*rows, header=header)
    return str(caught.value)


def test_every_price_of_the_public_list_is_read_to_the_nano_unit(traces_dir: Path) -> None:
    file = traces_dir / "prices/gpu_hourly_prices.csv"
    listed = pricelist.read(file)
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    on_demand = [price for price in listed if price.capacity is Capacity.ON_DEMAND]
    assert len(on_demand) == len(rows) == 27
    for price, row in zip(on_demand, rows, strict=True):
        whole, _, part = row["price_usd_per_gpu_hour"].partition(".")
        assert price.nanos_per_hour == int(whole + part.ljust(9, "0"))
        assert (price.provider, price.gpu, price.region) == (row["provider"], row["gpu"], row["region"])
    assert len(listed) - len(on_demand) == sum(row["spot_usd_per_gpu_hour"] != "" for row in rows)


def test_the_spot_price_is_a_price_of_its_own() -> None:
    listed = prices("nebius,H100,1,2.95,2.95,1.25")
    assert [(price.capacity.value, price.nanos_per_hour) for price in listed] == [
        ("on-demand", 2_950_000_000),
        ("spot", 1_250_000_000),
    ]
    assert {price.line for price in listed} == {2}


@given(st.integers(1, 10**15))
def test_decimal_text_comes_back_exactly(nanos: int) -> None:
    assert prices(f"p,g,1,,{decimal_text(nanos)},")[0].nanos_per_hour == nanos


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("p,g,1,,-2.95,", "negative"),
        ("p,g,1,,NaN,", "not a plain decimal"),
        ("p,g,1,,inf,", "not a plain decimal"),
        ("p,g,1,,2.95e3,", "not a plain decimal"),
        ("p,g,1,,1000001,", "above 1000000"),
        ("p,g,1,,9223372036854775794,", "above 1000000"),
        ("p,g,1,,0.0000000001,", "10 decimals, the most is 9"),
        ("p,g,1,,,", "not a plain decimal"),
        ("p,g,1,,0,", "no price is unpriced"),
        ("p,g,1,,2.95,3.95", "swapped"),
        ("p,,1,,2.95,", "empty gpu"),
        ("p,g,0,,2.95,", "gpu_count '0'"),
        ("p,g,8,2.95,2.95,", "8 GPUs at 2.95"),
        ("p,g,1,2.95", "4 cells, and the header has 6"),
        ('p,"g,1,,2.95,', "not CSV"),
        (f"{'p' * 513},g,1,,2.95,", "513 characters"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_value_limit_and_way_out(row: str, says: str) -> None:
    message = complaint("p,good,1,,1.00,", row)
    assert message.startswith("list.csv, line 3: ")
    assert says in message
    assert "\n" not in message


def test_the_same_price_twice_is_refused_even_if_it_is_equal() -> None:
    assert "line 4: p, g stands in line 2 already" in complaint("p,g,1,,2.95,", "p,h,1,,2.95,", "p,g,1,,2.95,")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("", "no header"),
        ("gpu,price_usd_per_gpu_hour,price_eur", "unknown column 'price_eur'"),
        ("gpu,gpu,price_usd_per_gpu_hour", "column gpu twice"),
        ("gpu,provider", "no column price_usd_per_gpu_hour"),
        ("price_usd_per_gpu_hour", "no column gpu"),
        ("gpu;price_usd_per_gpu_hour", "unknown column"),
    ],
)
def test_an_unknown_header_is_refused(header: str, says: str) -> None:
    assert says in complaint("g,2.95", header=header)


def test_files_that_hold_no_prices_say_so(tmp_path: Path) -> None:
    cases = {
        "empty.csv": (b"", "no header"),
        "header.csv": (HEADER.encode(), "no prices below the header"),
        "binary.csv": (b"\x1f\x8b\x08\x00\xff\xfe", "not UTF-8"),
        "nul.csv": (b"gpu\0", "NUL"),
        "large.csv": (b"x" * (16 * 1024 * 1024 + 1), "more than 16777216 bytes"),
    }
    for name, (raw, says) in cases.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UsageError, match=says):
            pricelist.read(tmp_path / name)
    for path, says in [(tmp_path / "absent.csv", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(UsageError, match=says):
            pricelist.read(path)


def test_a_byte_order_mark_and_spaces_are_no_part_of_a_name(tmp_path: Path) -> None:
    file = tmp_path / "excel.csv"
    file.write_bytes(b"\xef\xbb\xbfgpu , price_usd_per_gpu_hour\r\n H100 , 2.95\r\n")
    (price,) = pricelist.read(file)
    assert (price.gpu, price.nanos_per_hour) == ("H100", 2_950_000_000)
