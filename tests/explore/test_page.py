"""The page's words, its HTML, the Space, and what is refused before it starts; without gradio."""

from __future__ import annotations

import ast
import re
import socket
import string
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import st_reba
from st_reba.explore import draw, launch, names, page, serve, write_space
from st_reba.explore.compute import Hit, look

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


def cells(html: str) -> list[list[float]]:
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html)
    return [[float(each) for each in re.findall(r"<td[^>]*>([-\d.]+)</td>", row)] for row in rows if "<td" in row]


def test_tables_have_one_scale() -> None:
    one, other = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0, -0.25], [-0.25, 1.0]])
    html = draw.comparison({"one": one, "other": other}, ["a", "b"], WORDS["en"])
    assert cells(html) == [[1.0, 0.5], [0.5, 1.0], [1.0, -0.25], [-0.25, 1.0]]
    shares = [float(each) for each in re.findall(r"--s:([\d.]+)", html)]
    assert shares == [1.0, 0.6, 0.6, 1.0, 1.0, 0.0, 0.0, 1.0]
    # The smallest cosine is said beside the colours.
    assert "-0.250<span" in html


def test_tables_of_the_same_texts() -> None:
    """No scale can be made where all cosines are 1."""
    html = draw.comparison({"one": np.ones((2, 2))}, ["a", "a"], WORDS["zh"])
    assert cells(html) == [[1.0, 1.0], [1.0, 1.0]] and "nan" not in html


def test_a_text_inside() -> None:
    inside = look(st_reba.build("mini"), "看河水", 2)
    weights = inside.weights("last")
    html = draw.inside_text(inside, weights, [2], 4, WORDS["zh"])
    shown = re.findall(r'<span class="chip[^>]*>(.*?)<small>(.*?)</small>', html)
    assert shown == [("&lt;s&gt;", "–"), *((t, f"{w:.3f}") for t, w in zip("看河水看河水", weights[1:], strict=True))]
    assert re.findall(r'<div class="line"><b>(.*?)</b>', html) == ["文本之外", "第 1 遍", "第 2 遍"]
    assert f'title="水 → 看: {inside.rows[2, 4]:.3f}"' in html and "第 4 层的注意力" in html
    assert cells(html)[-13:-7] == [[round(s, 3) for s in (x.sink, x.even, x.itself)] for x in inside.sinks]
    # The chosen token's row, and the chosen layer's.
    assert re.findall(r'<tr class="chosen"><th[^>]*>(.*?)</th>', html) == ["水", "4 forward"]


def test_texts_stay_texts() -> None:
    evil = "<img src=x onerror=alert(1)> ${1+1} {{x}}"
    table = np.eye(2)
    answers = [
        draw.comparison({evil: table}, [evil, evil], WORDS["en"]),
        draw.results({evil: [Hit(0.5, evil)]}, evil, evil),
        draw.problem(evil, evil),
        draw.inside_text(inside := look(st_reba.build("mini"), "<b>", 2), inside.rows[0], [0], 0, WORDS["en"]),
    ]
    for html in answers:
        assert "<img" not in html and "<b>&lt;" in html.replace("</", "") or "&lt;" in html
        assert not re.search("<(img|b><)", html)


def test_shared_words_are_marked() -> None:
    html = draw.results({"reba": [Hit(0.5, "The Cat & I")]}, "a cat", "")
    assert "<b>0.500</b><span>The <mark>Cat</mark> &amp; I</span>" in html


# Before the page starts


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands for uvicorn: what it was to serve."""
    served: list[Any] = []
    monkeypatch.setitem(sys.modules, "uvicorn", types.SimpleNamespace(run=lambda *given, **all: served.append(all)))
    monkeypatch.setattr(serve, "make_app", lambda *given: given)
    return served


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_is_served_on_this_machine_alone(server: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    launch(["mini"], port=port)
    assert server[0]["host"] == "127.0.0.1" and server[0]["port"] == port
    assert f"http://127.0.0.1:{port}" in capsys.readouterr().out


def test_refused_before_it_starts(server: list[Any], tmp_path: Path) -> None:
    port = free_port()
    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "Did you mean 'echo'", {"models": ["mini ehco"]}),
        (ValueError, "language.*choose from", {"language": "de"}),
        (FileNotFoundError, "index", {"models": ["mini"], "index": tmp_path / "none"}),
        (TypeError, "unexpected keyword argument", {"models": ["mini"], "devise": "cpu"}),
    ]
    for kind, message, given in refused:
        with pytest.raises(kind, match=message):
            launch(**{"models": ["mini"], "port": port, **given})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="Give another port"):
            # A model that is not there: the port is looked at first.
            launch(["mini ehco"], port=taken.getsockname()[1])
    assert not server


def test_without_gradio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"pip install 'st-reba\[explore\]'"):
        launch(["mini"])


@pytest.mark.slow
def test_gradio_is_imported_by_the_page_alone() -> None:
    code = "import sys, st_reba, st_reba.explore; assert not {'gradio', 'fastapi', 'uvicorn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# The Space


def test_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ["mini", "mini echo:pooling=mean", "Qwen/Qwen3-0.6B"]
    folder = write_space(tmp_path / "space", models, title='Mine: "1"', language="zh")
    head = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert (head["title"], head["sdk"], head["app_file"]) == ('Mine: "1"', "gradio", "app.py")
    assert re.fullmatch(r"\d+\.\d+\.\d+", head["sdk_version"])
    assert (folder / "requirements.txt").read_text() == f"st-reba[explore]>={st_reba.__version__}\n"
    given: list[Any] = []
    monkeypatch.setattr(st_reba.explore, "launch", lambda *names, **all: given.append((names, all)))
    code = (folder / "app.py").read_text(encoding="utf-8")
    exec(compile(ast.parse(code), "app.py", "exec"), {})
    assert given == [((models,), {"host": "0.0.0.0", "port": 7860, "language": "zh"})]


def test_a_space_replaces_nothing_unasked(tmp_path: Path) -> None:
    folder = write_space(tmp_path / "space", ["mini"])
    with pytest.raises(FileExistsError, match="overwrite"):
        write_space(folder, ["mini echo"])
    write_space(folder, ["mini echo"], overwrite=True)
    assert "mini echo" in (folder / "app.py").read_text()
    (folder / "mine.txt").write_text("kept")
    with pytest.raises(FileExistsError, match="not a Space"):
        write_space(folder, ["mini"], overwrite=True)
    assert (folder / "mine.txt").read_text() == "kept"


def test_a_space_cannot_read_this_machine(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "recipe.yaml").write_text("base: mini\n")
    for model in (str(tmp_path / "model"), f"{tmp_path / 'model'} echo", str(tmp_path / "recipe.yaml")):
        with pytest.raises(ValueError, match="st-reba push"):
            write_space(tmp_path / "space", [model])
    with pytest.raises(ValueError, match="you named 0 models"):
        write_space(tmp_path / "space", [])
    with pytest.raises(ValueError, match="language"):
        write_space(tmp_path / "space", ["mini"], language="de")
    assert not (tmp_path / "space").exists()
