"""The zoo's cards in model_cards/: as the recipes are, and honest where a recipe alone makes no model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
from huggingface_hub import ModelCard

from st_reba import zoo
from st_reba.hub import zoo_cards
from st_reba.hub.card import TEMPLATE
from st_reba.hub.zoo_cards import stale_cards, write_cards

CARDS = Path(__file__).parents[2] / "model_cards"
COMMAND = "python scripts/publish_zoo.py --cards"


def test_the_zoo_s_cards_are_current() -> None:
    stale = stale_cards(CARDS)
    assert not stale, f"stale: {sorted(stale)}; renew them with: {COMMAND}"
    assert (CARDS / TEMPLATE.name).is_symlink() and (CARDS / TEMPLATE.name).samefile(TEMPLATE)


def test_stale_cards_are_named_and_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["mini-echo", "llama2-chinese-reba", "finma-7b-nosink"]
    monkeypatch.setattr(zoo_cards.zoo, "names", lambda: names)
    (tmp_path / "template.md").write_text("kept", encoding="utf-8")
    assert sorted(write_cards(tmp_path)) == sorted(f"{name}.md" for name in names)
    assert write_cards(tmp_path) == [] and stale_cards(tmp_path) == {}
    (tmp_path / "gone.md").write_text("of no recipe", encoding="utf-8")
    (tmp_path / "mini-echo.md").write_text("by hand", encoding="utf-8")
    (tmp_path / "finma-7b-nosink.md").unlink()
    assert set(stale_cards(tmp_path)) == {"gone.md", "mini-echo.md", "finma-7b-nosink.md"}
    assert stale_cards(tmp_path)["gone.md"] is None
    write_cards(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"template.md", *(f"{name}.md" for name in names)}
    assert (tmp_path / "mini-echo.md").read_bytes() == (CARDS / "mini-echo.md").read_bytes()
    assert (tmp_path / "template.md").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("name", zoo.names())
def test_card(name: str) -> None:
    recipe, text = zoo.load(name), (CARDS / f"{name}.md").read_text(encoding="utf-8")
    about, arguments = recipe.about, recipe.arguments
    card = ModelCard(text)
    data = cast(Any, card.data).to_dict()
    assert data["model_name"] == name and data["language"] == list(about.language)
    assert data["license"] == about.licence and arguments["method"] in data["tags"]
    assert data.get("base_model") == (arguments["base"] if "/" in arguments["base"] else None)
    if about.licence == "other":
        assert data["license_name"] and data["license_link"].startswith("https://")
    # What a paper printed was not measured here.
    assert "model-index" not in data and ("No benchmark was run with this model." in text) == (not about.measured)
    measured = [f"| {each.task} | {each.metric} | {each.value} | {each.table} |" for each in about.measured]
    assert [line for line in text.splitlines() if line in measured] == measured
    assert ("## Results of the recipe" in text) == bool(about.measured)
    printed = re.findall(r"^\| (.+?) \| \S+ \| ([\d.]+) \| (?:Table|Figure) .*\|$", text, re.MULTILINE)
    assert [(task, float(value)) for task, value in printed] == [(each.task, each.value) for each in about.scores]
    assert ("**not measured with this model**" in text) == bool(about.scores)
    ready = about.status == "ready"
    assert ("> **Not ready.**" in text) == (not ready)
    assert ("```python" in text) == ("## Use" in text) == (f"\nst-reba zoo build {name} {name}\n" in text) == ready
    if about.note is not None:
        assert about.note in text
    assert ("房贷" in text) == (ready and "zh" in about.language)
    own = arguments["method"] == "nosink" and "pooling" not in arguments
    assert ("is an embedder already" in text) == ("| pooling | the base's own |" in text) == own
    loaded = arguments["base"] == "mini"
    # Two layers side by side, less one direction.
    dimensions = 383 if "postfilter" in arguments else 192
    assert (f"| dimensions | {dimensions} |" in text) == loaded and ("written from the recipe alone" in text) == (
        not loaded
    )
    if "max_seq_length" in arguments:
        assert f"| positions | {arguments['max_seq_length']} |" in text
    for word in ("None", "{{", "/work", "/tmp", "/home"):
        assert word not in text
