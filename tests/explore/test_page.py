"""The page's words; what it does in a browser is seen in tests/explore/browser."""

from __future__ import annotations

import re
import string

from st_reba.explore import names, page

WORDS = page.words()


def test_both_languages_say_the_same() -> None:
    assert set(WORDS) == set(names.LANGUAGES)
    english, chinese = WORDS["en"], WORDS["zh"]
    assert set(english) == set(chinese)
    for key in english:
        fields = [
            sorted(name for _, name, _, _ in string.Formatter().parse(each[key]) if name) for each in WORDS.values()
        ]
        assert fields[0] == fields[1], key
        if not key.startswith("some_"):
            assert re.search("[\u4e00-\u9fff]", chinese[key]) and not re.search("[\u4e00-\u9fff]", english[key]), key
