"""A record becomes a document, or is told why it cannot."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pytest

from st_reba.corpus.records import Document, Reading, Reject, beginning, checked, strictly


@pytest.mark.parametrize(
    ("names", "text", "identity"),
    [
        (["_id", "title", "body"], "body", "_id"),
        (["document", "content", "docid"], "content", "docid"),
        (["sentence", "label"], "sentence", None),
        (["id", "text", "uuid"], "text", "id"),
    ],
)
def test_usual_names_are_guessed(names: list[str], text: str, identity: str | None) -> None:
    found = Reading().resolved(names)
    assert (found.text_column, found.id_column) == (text, identity)
    with pytest.raises(ValueError, match="no column 'abstract'; there: .*--text-column"):
        Reading("abstract").resolved(names)
    with pytest.raises(ValueError, match="no column 'key'; .*--id-column"):
        Reading(id_column="key").resolved(names)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (Document(7), "wrong type: the text is of type int, not a string; write it as a string"),  # type: ignore[arg-type]
        (Document("a", id=5), "wrong type: the id is of type int; write it as a string"),  # type: ignore[arg-type]
        (Document("a", id="\udcff"), "wrong type: the id is no valid Unicode; write it as a string"),
        (Document("a", id=""), "wrong type: the id is empty; write it as a string"),
        (Document("a", metadata=["x"]), "wrong type: the metadata .* (it is of type list, not a dict)"),  # type: ignore[arg-type]
        (Document("a", metadata={"x": object()}), "wrong type: the metadata cannot be written as JSON (<object object"),
        (Document("a", metadata={"x": [{1: "one"}]}), "(the key 1 is of type int, not a string); correct it or leave"),
        (Document("a" * 9), "too long: the text has 9 characters, more than 8; split it"),
    ],
)
def test_what_is_no_document(document: Document, reason: str) -> None:
    found = checked(document, "line 3", max_chars=8)
    assert isinstance(found, Reject) and found.place == "line 3" and found.kind == found.reason.partition(":")[0]
    assert all(part in found.reason for part in reason.split(" .* ")), found.reason


def test_what_json_cannot_hold_is_written_otherwise() -> None:
    given = {"n": float("inf"), "when": (datetime(2024, 2, 29, 1, tzinfo=UTC), time(3)), "paid": Decimal("9.90")}
    given |= {
        "array": np.array([[1.5, np.nan]]),
        "small": np.int8(3),
        "b\udcff": "\ud800",
        "took": timedelta(1),
    }
    found = checked(Document("a\udcff", "x", given), "line 3")
    assert found == Document(
        "a\ufffd",
        "x",
        {
            **{"n": None, "when": ["2024-02-29T01:00:00+00:00", "03:00:00"], "paid": "9.90"},
            **{"array": [[1.5, None]], "small": 3, "b\ufffd": "\ufffd", "took": "1 day, 0:00:00"},
        },
    )


def test_strictly_stops_at_the_first_reject() -> None:
    records = strictly(iter([Document("a"), Reject("line 2", "no text: it is empty"), Document("b")]))
    assert next(records) == Document("a")
    with pytest.raises(ValueError, match="line 2: no text: it is empty"):
        next(records)


def test_beginnings_are_one_short_line() -> None:
    assert beginning(None) is None and beginning("a\n  b\ud800") == "a b\ufffd"
    long = beginning("x" * 200)
    assert long is not None and len(long) == 80 and long.endswith("…") and beginning("y" * 80) == "y" * 80
