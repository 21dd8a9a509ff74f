import pytest

from palmette.errors import ConfigError
from palmette.units import count_of, describe_error, format_bytes, format_count, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [("2GiB", 2**31), ("1.5 GB", 1_500_000_000), ("512", 512), (7, 7), ("800mib", 800 * 2**20), ("0", 0)],
)
def test_amounts_of_memory_are_read_in_every_usual_spelling(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 gigs", "1e3", "2GiB x", -1])
def test_what_is_no_amount_of_memory_is_an_error_that_shows_how_to_write_one(text: str | int) -> None:
    with pytest.raises(ConfigError, match="no amount of memory"):
        parse_bytes(text)


def test_bytes_are_printed_in_the_largest_unit_that_fits() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 17.3 * 2**30, 2**40)] == [  # type: ignore[arg-type]
        "0 B", "1023 B", "1.5 KiB", "17.3 GiB", "1.0 TiB",
    ]  # fmt: skip


def test_counts_and_durations_are_printed_for_people() -> None:
    assert [format_count(n) for n in (0, 12345, 134_515_008)] == ["0", "12,345", "134.5 M"]
    assert [format_seconds(s) for s in (8.44, 200, 7500)] == ["8.4 s", "3 min 20 s", "2 h 05 min"]


def test_more_memory_than_there_can_be_is_refused() -> None:
    for much in ("9" * 400 + "GiB", "5000000TiB", 2**63):
        with pytest.raises(ConfigError, match="more memory than any machine has"):
            parse_bytes(much)


def test_a_count_comes_with_its_noun_in_the_right_number() -> None:
    assert [count_of(count, "token") for count in (0, 1, 2, 2048)] == [
        "0 tokens",
        "1 token",
        "2 tokens",
        "2,048 tokens",
    ]
    assert [count_of(count, "branch", "branches") for count in (1, 2)] == ["1 branch", "2 branches"]


def test_an_error_is_described_in_one_line() -> None:
    assert describe_error(ValueError("two\n  lines")) == "ValueError: two lines"
    assert describe_error(MemoryError()) == "MemoryError"
    assert len(describe_error(ValueError("x" * 1000))) == 200
