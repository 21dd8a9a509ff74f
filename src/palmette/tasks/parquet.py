"""Rows of a parquet file, as plain Python values."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palmette.errors import BackendError, ConfigError
from palmette.units import describe_error


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of every row, from 1 on, and the row.

    Raises ConfigError for a file that cannot be read or has no rows, BackendError if pyarrow is not installed.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise BackendError(f"{path}: parquet files need pyarrow: pip install 'palmette[parquet]'") from error
    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (OSError, ArrowException) as error:
        raise ConfigError(f"{path}: cannot read the file: {describe_error(error)}") from error
    if not number:
        raise ConfigError(f"{path}: the file has no rows")
