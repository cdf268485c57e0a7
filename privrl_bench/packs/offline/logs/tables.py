"""Tables of steps, read in batches: CSV, Parquet, JSON lines, and data frames.

Rows are counted from 1 in the order in which they are read, without the head of a CSV file. Errors name the
row: they are for the data's owner, since they say something about one person.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privrl_bench.errors import ConfigError, suggest

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 1 << 18  # of a batch
KINDS = {
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
}
_TRUE, _FALSE = ("true", "t", "yes", "1", "1.0"), ("false", "f", "no", "0", "0.0")


def batches(source: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a table, in batches of these columns.

    Args:
        source: a path, several, or a data frame (pandas, or a pyarrow Table).
        columns: names, each once.

    Raises:
        ConfigError: no such file or column, or what cannot be read.
    """
    pyarrow = _pyarrow()
    if not isinstance(source, str | Path) and hasattr(source, "columns"):
        table = source
        if not isinstance(source, pyarrow.Table):
            _check_columns("the data frame", [str(one) for one in source.columns], columns)
            try:
                table = pyarrow.Table.from_pandas(source[list(columns)], preserve_index=False)
            except (pyarrow.ArrowException, TypeError, ValueError) as error:
                raise _unreadable("the data frame", error) from None
        _check_columns("the table", table.column_names, columns)
        yield from table.select(list(columns)).to_batches(_ROWS)
        return
    files = [Path(source)] if isinstance(source, str | Path) else [Path(one) for one in source]
    if not files:
        raise ConfigError("FILE", "name a file")
    for file in files:
        yield from _of_file(file, columns)


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ConfigError("FILE", "reading logs needs pip install 'privrl-bench[logs]'") from None
    return pyarrow


def _of_file(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    pyarrow = _pyarrow()
    suffix = next(
        (one for one in sorted(KINDS, key=len)[::-1] if file.name.lower().endswith(one)), ""
    )
    if not file.exists():
        raise ConfigError("FILE", f"there is no {file}")
    if file.is_dir() or not suffix:
        raise ConfigError("FILE", f"{file} must be a file that ends in {', '.join(KINDS)}")
    if not file.stat().st_size:
        raise ConfigError("FILE", f"{file} is empty")
    read = {"csv": _csv, "parquet": _parquet, "json": _json}[KINDS[suffix]]
    try:
        yield from read(file, columns)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(file), error) from None


def _csv(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Every column as text: types that are guessed from the first rows would differ from file to file."""
    import pyarrow as pa
    from pyarrow import csv

    mark = "\t" if ".tsv" in file.name.lower() else ","
    opened = csv.open_csv(
        file,
        read_options=csv.ReadOptions(block_size=1 << 24),
        parse_options=csv.ParseOptions(delimiter=mark),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    _check_columns(str(file), opened.schema.names, columns)
    for batch in opened:
        yield batch.select(list(columns))


def _parquet(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with parquet.ParquetFile(file) as opened:
        _check_columns(str(file), opened.schema_arrow.names, columns)
        yield from opened.iter_batches(_ROWS, columns=list(columns))


def _json(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import json

    for batch in json.open_json(file, read_options=json.ReadOptions(block_size=1 << 24)):
        _check_columns(str(file), batch.schema.names, columns)
        yield batch.select(list(columns))


def _check_columns(where: str, there: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if (count := list(there).count(name)) != 1:
            problem = "has no column" if not count else "has more than one column"
            near = suggest(name, there) or f"; it has {', '.join(map(str, there))}"
            raise ConfigError("FILE", f"{where} {problem} {name!r}{near if not count else ''}")


def _unreadable(where: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return ConfigError("FILE", f"{where} cannot be read: {reason}")


# --- values of one column of a batch


def invalid_row(row: int, column: str, problem: str) -> ConfigError:
    """The error of a row, counted from 0."""
    return ConfigError("FILE", f"row {row + 1}: {column}{' ' if column else ''}{problem}")


def _first(rows: Any) -> int:
    """Index of the first true value."""
    return int(np.argmax(np.asarray(rows)))


def numbers(values: pa.Array, first: int, column: str) -> np.ndarray:
    """Values as float64, all of them finite in single precision.

    Args:
        values: of a batch.
        first: row of the first one.
        column: its name, for messages.

    Raises:
        ConfigError: a value is missing, no number, or not finite.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    _check_missing(values, first, column)
    values = _plain(values)
    if pa.types.is_string(values.type):
        values = pc.utf8_trim_whitespace(values)
    try:
        found = pc.cast(values, pa.float64(), safe=False)
    except pa.ArrowException:
        at = next(k for k, one in enumerate(values) if not _is_number(one.as_py()))
        wrong = _text(values[at].as_py())
        raise invalid_row(first + at, column, f"must be a number, got {wrong}") from None
    array = found.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(array.astype(np.float32))
    if bad.any():
        at = _first(bad)
        raise invalid_row(first + at, column, f"must be a finite number, got {array[at]:g}")
    return array


def _is_number(value: Any) -> bool:
    try:
        return float(value) is not None
    except (TypeError, ValueError):
        return False


def flags(values: pa.Array, first: int, column: str) -> np.ndarray:
    """Values as bool: true, t, yes, 1, or false, f, no, 0. Raises ConfigError for others."""
    import pyarrow as pa

    _check_missing(values, first, column)
    if pa.types.is_boolean(values.type):
        return values.to_numpy(zero_copy_only=False)
    coded = _plain(values).cast(pa.string()).dictionary_encode()
    known = []
    for word in coded.dictionary.to_pylist():
        small = word.strip().lower()
        known.append(1 if small in _TRUE else 0 if small in _FALSE else -1)
    found = np.array(known, np.int8)[coded.indices.to_numpy(zero_copy_only=False)]
    if (found < 0).any():
        at = _first(found < 0)
        wrong = _text(values[at].as_py())
        raise invalid_row(first + at, column, f"must be true or false, 1 or 0, got {wrong}")
    return found.astype(bool)


class Codes:
    """Numbers of the different values of a column, in the order in which they appear.

    Attributes:
        names: the values, as text.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}

    def of(self, values: pa.Array, first: int, column: str) -> np.ndarray:
        """[n] int64 numbers. Raises ConfigError: a value is missing, or empty."""
        import pyarrow as pa

        _check_missing(values, first, column)
        coded = _plain(values).cast(pa.string()).dictionary_encode()
        words = coded.dictionary.to_pylist()
        places = coded.indices.to_numpy(zero_copy_only=False)
        blank = np.array([not word.strip() for word in words], bool)[places]
        if blank.any():
            raise invalid_row(first + _first(blank), column, "is empty")
        table = [self.names.setdefault(word, len(self.names)) for word in words]
        return np.array(table, np.int64)[places]


class RowOrder:
    """The column by which a user's rows are in order: whole numbers, numbers, or times; one kind in all."""

    def __init__(self) -> None:
        self._kind: str | None = None

    def of(self, values: pa.Array, first: int, column: str) -> np.ndarray:
        """[n] int64 or float64. Raises ConfigError: a value is missing, or of another kind."""
        import pyarrow as pa

        _check_missing(values, first, column)
        values = _plain(values)
        for kind, cast in _ORDERS.items():
            if self._kind not in (None, kind):
                continue
            try:
                found: np.ndarray = cast(values).to_numpy(zero_copy_only=False)
            except (pa.ArrowException, ValueError):
                continue
            if np.issubdtype(found.dtype, np.floating) and not np.isfinite(found).all():
                break
            self._kind = kind
            return found
        first_kind = self._kind or next((k for k in _ORDERS if self._holds(values[0], k)), None)
        kinds = [first_kind] if first_kind else list(_ORDERS)
        rule = f"must be {' or '.join(kinds)}, as in the rows before" if first_kind else _RULE
        at = next(k for k, one in enumerate(values) if not any(self._holds(one, x) for x in kinds))
        raise invalid_row(first + at, column, f"{rule}, got {_text(values[at].as_py())}")

    @staticmethod
    def _holds(one: pa.Scalar, kind: str) -> bool:
        import pyarrow as pa

        try:
            found = _ORDERS[kind](pa.array([one.as_py()]))
        except (pa.ArrowException, ValueError):
            return False
        return math.isfinite(float(found[0].as_py()))


_RULE = "must be a number or a time"


def _as_time(values: pa.Array) -> pa.Array:
    import pyarrow as pa

    return values.cast(pa.timestamp("us")).cast(pa.int64())


def _as_whole(values: pa.Array) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_temporal(values.type):
        raise ValueError("a time")
    return values.cast(pa.int64())


def _as_float(values: pa.Array) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_temporal(values.type):
        raise ValueError("a time")
    return values.cast(pa.float64())


_ORDERS: dict[str, Callable[[Any], Any]] = {
    "a whole number": _as_whole,
    "a number": _as_float,
    "a time": _as_time,
}


def _check_missing(values: pa.Array, first: int, column: str) -> None:
    if values.null_count:
        at = _first(values.is_null().to_numpy(zero_copy_only=False))
        raise invalid_row(first + at, column, "is missing")


def _plain(values: pa.Array) -> pa.Array:
    """Values that are not in a dictionary, text as small strings."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_nested(values.type):
        raise ConfigError("FILE", f"columns must hold one value in a row, got {values.type}")
    return values.cast(pa.string()) if pa.types.is_large_string(values.type) else values


def _text(value: Any) -> str:
    """A value for a message, shortened."""
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def counted(read: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(row of its first value, batch)."""
    first = 0
    for batch in read:
        yield first, batch
        first += batch.num_rows
