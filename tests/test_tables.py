"""Rows of .csv and .tsv: where they stand, and that a bad one takes no other with it."""

from __future__ import annotations

from st_reba.tables import LineError, csv_records


def test_csv_records_number_lines() -> None:
    lines: list[str | LineError] = ["a,b\n", LineError("too long"), "\n", '1,"\n', '2"\n', '"x" y\n', "3,4\n"]
    found = [(line, row if isinstance(row, list) else None) for line, row, _ in csv_records(lines, ",")]
    assert found == [(1, ["a", "b"]), (2, None), (4, ["1", "\n2"]), (6, None), (7, ["3", "4"])]
