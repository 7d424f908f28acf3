"""A draw of texts without labels: different texts of every script, whatever their order."""

from __future__ import annotations

import json
from pathlib import Path

from st_reba.evaluation.unlabelled import unlabelled


def test_a_draw_is_of_different_texts_of_every_script(tmp_path: Path) -> None:
    chinese = [f"第{n}家银行今天在城里开了门。" for n in range(200)]
    english = [f"The bank number {n} opened in town today." for n in range(70)]
    texts = [*chinese, *english, *english, "short", " ", "好"]
    drawn = unlabelled(texts, sample=100)
    assert drawn.writing == {"LATIN": 50, "CJK": 50} and len(set(drawn.texts)) == len(drawn.items) == 100
    assert drawn.left_out == {"repeated": 70, "too short for two views": 2, "empty or not readable": 1}
    assert drawn.read == len(texts) and "100 of 343 texts" in str(drawn) and "100 texts are few" in drawn.warning
    assert unlabelled(texts[::-1], sample=100).texts == drawn.texts
    assert unlabelled(texts, sample=100, seed=1).texts != drawn.texts
    # A few texts of another script, or none, are no second script.
    assert drawn.mixed
    for other in (
        [],
        english[:9],
        [f"{n} + 1 = 2 - 3 + 4" for n in range(90)],
        [f"ひらがなだけのぶんです{n}" for n in range(90)],
    ):
        assert not unlabelled([*chinese, *other]).mixed
    # All of the script that has fewer.
    assert unlabelled(texts, sample=250).writing == {"LATIN": 70, "CJK": 180}
    assert "too short" in unlabelled([*chinese[:60], *"甲乙丙丁戊己庚辛壬癸"]).warning
    (tmp_path / "a.txt").write_text("\n".join(chinese), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in english))
    assert unlabelled(tmp_path, sample=100).texts == drawn.texts
