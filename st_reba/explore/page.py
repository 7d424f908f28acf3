"""The page: what is entered where, and which computation answers. Gradio calls the functions; HTML comes from draw."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from . import compute, draw
from .names import LANGUAGES

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..index import Index

logger = logging.getLogger(__name__)

# Answers that are kept, so that a slider or the language does not run a model again; all layers' attention is large.
_KEPT = 64
_KEPT_INSIDE = 8


@cache
def words() -> dict[str, dict[str, str]]:
    """All that the page says, by language."""
    texts = Path(__file__).with_name("words.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = yaml.safe_load(texts)
    return found


class Page:
    """The page's parts. Of each part that says something, ``said`` knows which words: the language switch sets them."""

    def __init__(
        self, gr: Any, models: Mapping[str, SentenceTransformer], index: Index | None, language: str | None
    ) -> None:
        self.gr, self.models, self.index = gr, models, index
        self.texts = words()[language or "en"]
        self.said: list[tuple[Any, dict[str, str]]] = []
        self.similar = lru_cache(_KEPT)(lambda name, texts: compute.similarities(models[name], texts))
        self.looked = lru_cache(_KEPT_INSIDE)(lambda name, text, repeats: compute.look(models[name], text, repeats))
        self.ranked = lru_cache(_KEPT)(lambda name, query, texts: compute.ranked(models[name], query, texts))
        with gr.Blocks(title=self.texts["title"], analytics_enabled=False, fill_width=True) as self.blocks:
            # What the parts say by now: the page answers anew when they say it.
            self.spoken = gr.State(None)
            with gr.Row(elem_id="top"):
                self.title = gr.HTML(self._heading(self.texts), elem_id="title", padding=False)
                self.language = gr.Radio(
                    [(name, code) for code, name in LANGUAGES.items()],
                    value=language,
                    show_label=False,
                    container=False,
                    scale=0,
                    min_width=200,
                    elem_id="language",
                )
            with gr.Tabs():
                self._compare()
                self._inside()
                self._search()
            self._switch(fixed=language is not None)

    # The tabs

    def _compare(self) -> None:
        with self._tab("compare"):
            models = self._choice("compare-models")
            texts = self._box("sentences", "some_sentences", 5)
            button = self._button("compare")
            answer = self.gr.HTML(elem_id="compare-answer")
        self._answer(self._compared, [models, texts], answer, [button.click, models.change])

    def _compared(self, names: Sequence[str], text: str, said: Mapping[str, str]) -> str:
        texts = compute.lines_of(text, least=2, most=compute.MOST_SENTENCES)
        tables = {name: self.similar(name, tuple(texts)) for name in self._chosen(names)}
        return draw.comparison(tables, texts, said)

    def _inside(self) -> None:
        gr = self.gr
        names = [name for name, model in self.models.items() if compute.can_look(model)]
        if not names:
            return
        with self._tab("inside"):
            with gr.Row():
                model = self._say(gr.Dropdown(names, value=names[-1], elem_id="inside-model"), label="model")
                repeats = self._say(self._copies(names[-1]), label="repeats")
                last = compute.passes_of(self.models[names[-1]]) - 1
                slider = gr.Slider(0, last, value=0, step=1, buttons=[], elem_id="inside-layer")
                layer = self._say(slider, label="layer")
            text = self._box("text", "some_text", 1)
            with gr.Row():
                weighting = self._say(
                    gr.Radio([], value="mean", scale=2, elem_id="inside-weighting"),
                    label="weighting",
                    choices="last mean word",
                )
                word = self._box("which_word", "some_word", 1)
            button = self._button("inside")
            answer = gr.HTML(elem_id="inside-answer")
            # The model that the sliders fit: another may have another number of copies and of layers.
            fitted = gr.State(names[-1])
        self._on([model.change], self._fitted, [model], [repeats, layer, fitted])
        inputs = [fitted, text, repeats, weighting, word, layer]
        changes = [fitted.change, repeats.change, layer.change, weighting.change]
        self._answer(self._looked, inputs, answer, [button.click, text.submit, word.submit, *changes])

    def _copies(self, name: str) -> Any:
        own, free = compute.copies_of(self.models[name])
        most = max(own, compute.MOST_COPIES)
        return self.gr.Slider(1, most, value=own, step=1, interactive=free, buttons=[], elem_id="inside-repeats")

    def _fitted(self, name: str) -> tuple[Any, Any, str]:
        last = compute.passes_of(self.models[name]) - 1
        return self._copies(name), self.gr.Slider(maximum=last, value=0), name

    def _looked(
        self,
        name: str,
        text: str,
        repeats: float,
        weighting: compute.Weighting,
        word: str,
        layer: float,
        said: Mapping[str, str],
    ) -> str:
        (text,) = compute.lines_of(text, least=1, most=1)
        inside = self.looked(name, text, int(repeats))
        chosen: list[int] = []
        if weighting == "word":
            chosen = compute.tokens_of(self.models[name], text, word)
        elif weighting == "last":
            chosen = [len(inside.rows) - 1]
        weights = inside.weights(weighting, chosen)
        layer = min(int(layer), len(inside.maps.layers) - 1)
        return draw.inside_text(inside, weights, chosen, layer, said)

    def _search(self) -> None:
        gr = self.gr
        with self._tab("search"):
            models = self._choice("search-models")
            where = self._say(
                gr.Radio([], value="pasted", elem_id="search-where", visible=self.index is not None),
                label="corpus",
                choices="pasted index",
            )
            query = self._box("query", "some_query", 1)
            texts = self._box("documents", "some_documents", 6)
            button = self._button("search")
            answer = gr.HTML(elem_id="search-answer")
        when = [button.click, query.submit, models.change, where.change]
        self._answer(self._found, [models, where, query, texts], answer, when)

    def _found(self, names: Sequence[str], where: str, query: str, text: str, said: Mapping[str, str]) -> str:
        (query,) = compute.lines_of(query, least=1, most=1)
        about, found = said["found"], {}
        if where == "index" and self.index is not None:
            hits = compute.found_in(self.index, query)
            found[said["index_column"]] = hits[: compute.MOST_RESULTS]
            texts = [hit.text for hit in hits]
            about += " " + said["index_about"].format(most=compute.MOST_FOUND, read=compute.MOST_READ)
        else:
            texts = compute.lines_of(text, least=1, most=compute.MOST_DOCUMENTS)
        found |= {name: self.ranked(name, query, tuple(texts)) for name in self._chosen(names)}
        return draw.results(found, query, about)

    @staticmethod
    def _chosen(names: Sequence[str]) -> Sequence[str]:
        if not names:
            raise compute.Refused("no_model")
        return names

    # What they share

    def _tab(self, name: str) -> Any:
        return self._say(self.gr.Tab(self.texts[name], id=name), label=name)

    def _box(self, label: str, example: str, lines: int) -> Any:
        box = self.gr.Textbox(lines=lines, max_lines=max(lines, 8) if lines > 1 else 1, elem_id=label)
        return self._say(box, label=label, value=example)

    def _button(self, tab: str) -> Any:
        button = self.gr.Button(variant="primary", elem_id=f"{tab}-run", elem_classes="run")
        return self._say(button, value=f"run_{tab}")

    def _choice(self, name: str) -> Any:
        """All models, each of which can be left out."""
        return self._say(
            self.gr.CheckboxGroup(list(self.models), value=list(self.models), elem_id=name), label="models"
        )

    def _say(self, part: Any, **names: str) -> Any:
        """Note what a part says: of each property its words, of choices several; and say it in the first language."""
        self.said.append((part, names))
        for name, value in self._saying(names, self.texts).items():
            setattr(part, name, value)
        return part

    @staticmethod
    def _saying(names: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, Any]:
        return {
            name: [(texts[key], key) for key in keys.split()] if name == "choices" else texts[keys]
            for name, keys in names.items()
        }

    def _answer(self, run: Callable[..., str], inputs: Sequence[Any], answer: Any, when: Sequence[Any]) -> None:
        """Answer on some events, and in another language; what goes wrong is said where the answer would be."""

        def answered(*values: Any) -> str:
            *entered, language = values
            said = words()[language or "en"]
            try:
                return run(*entered, said)
            except compute.Refused as refused:
                return draw.problem(said["problem"], said[refused.key].format(**refused.values))
            except (ValueError, OSError) as error:
                return draw.problem(said["problem"], str(error))
            except Exception as error:
                logger.exception("The page could not answer.")
                return draw.problem(said["problem"], f"{type(error).__name__}: {error}")

        self._on([*when, self.spoken.change], answered, [*inputs, self.spoken], answer)

    def _on(self, events: Sequence[Any], run: Callable[..., Any], inputs: Sequence[Any], outputs: Any) -> None:
        """Run on any of some events, one run at a time on the whole page. While one runs, only the last of further
        events is kept, so that what is shown in the end is what was entered."""
        self.gr.on(
            events,
            run,
            inputs,
            outputs,
            trigger_mode="always_last",
            concurrency_id="page",
            concurrency_limit=1,
            api_visibility="private",
            show_progress="minimal",
        )

    # Languages

    @staticmethod
    def _heading(texts: Mapping[str, str]) -> str:
        return f"<h1>{texts['title']}</h1><p>{texts['about']}</p>"

    def _switch(self, *, fixed: bool) -> None:
        """Say all in the other language, examples that nobody has changed too, and answer anew."""
        gr = self.gr
        parts = [part for part, _ in self.said]
        boxes = [part for part in parts if isinstance(part, gr.Textbox)]

        def switched(language: str, *entered: str) -> list[Any]:
            texts, values = words()[language], dict(zip(boxes, entered, strict=True))
            updates: list[Any] = [self._heading(texts)]
            for part, names in self.said:
                changes = self._saying(names, texts)
                if part in values and values[part] not in [each[names["value"]] for each in words().values()]:
                    del changes["value"]
                updates.append(gr.update(**changes))
            return [*updates, language]

        # Where the language is open, the browser's own is chosen first, which is a change too.
        if not fixed:
            own = "() => navigator.language.startsWith('zh') ? 'zh' : 'en'"
            self.blocks.load(None, None, self.language, js=own, api_visibility="private")
        events = [self.language.change, *([self.blocks.load] if fixed else [])]
        self._on(events, switched, [self.language, *boxes], [self.title, *parts, self.spoken])
