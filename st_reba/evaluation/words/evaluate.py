"""Score methods on word-sense questions, layer by layer."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm
from transformers import AutoConfig

from ...bases import locate
from ...batches import copied_positions
from ...layers import Layers, layer_numbers
from ...words import Item, encode_word_layers, unseen_words
from ..methods import Base, Limit, Method, identity
from ..results import Result, Results
from .questions import Question, WordTask
from .scoring import bootstrap_intervals, odd_one_out

KIND = "word sense"
_UNLIMITED = Limit()
UNSEEN = "the word is past the cut in a sentence (scored as wrong)"
DROPPED = "the word is on no token in a sentence"


def evaluate_words(
    base: Base,
    methods: Sequence[Method],
    tasks: WordTask | Sequence[WordTask],
    results: Results,
    *,
    layers: Layers = "last",
    limit: Limit = _UNLIMITED,
    batch_size: int | None = None,
    batch_tokens: int | None = None,
    command: str = "",
    show_progress_bar: bool | None = None,
) -> list[Result]:
    """Score methods on word-sense questions: the answer is the sentence whose word vector is the odd one out.

    That is the one whose distances to the other three have the largest sum; of several, the first. Both Euclidean and
    cosine distance (1 − cos) are scored. All methods answer the same questions: where a method's copies are cut so
    short that it does not see the word, its answer counts as wrong, and the question is named in ``left_out``.

    Args:
        base: The base model.
        methods: The methods.
        tasks: What :func:`read_words` read.
        results: Where the results go, and are found again.
        layers: Whose hidden states stand for the words, see :func:`st_reba.words.encode_word_layers`; all of them come
            out of one run. Those of inner layers have not passed the model's final norm.
        limit: How much of a sentence is read.
        batch_size: Sentences a forward pass. Excludes ``batch_tokens``.
        batch_tokens: Positions a forward pass.
        command: What runs it again, for the record.
        show_progress_bar: Show one; None: on a terminal.

    Returns:
        A result a method, task and layer; the layer stands in its settings where it is not the last.

    Raises:
        ValueError: Two tasks have one name, there is no such layer, or a method sees no question's words.

    Source:
        ReBA, section 4 and appendix (SLPWC, WSD).

    Example:
        >>> from st_reba.evaluation.methods import Base, read_methods
        >>> from st_reba.evaluation.results import Results
        >>> from st_reba.evaluation.words import evaluate_words, read_words
        >>> with open("banks.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("word,sentence1,sentence2,sentence3,sentence4,answer\\n")
        ...     _ = file.write("bank,The bank pays.,A bank lends.,The bank is steep.,My bank shut.,C\\n")
        >>> methods = read_methods("classical,reba")
        >>> found = evaluate_words(Base("mini"), methods, read_words("banks.csv"), Results("out"), layers=[0, -1])
        >>> [(result.method, dict(result.settings), result.items) for result in found]
        [('classical last', {'layer': 0}, 1), ('classical last', {}, 1), ('reba-2 last', {'layer': 0}, 1), ...]
    """
    tasks = [tasks] if isinstance(tasks, WordTask) else list(tasks)
    names = [task.name for task in tasks]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"Two files make a task {twice[0]!r}, so tables could not tell them apart. Rename one.")
    depth = None if layers == "last" else _depth(base)
    sizes = {"batch_size": batch_size, "batch_tokens": batch_tokens}
    found = []
    disable = None if show_progress_bar is None else not show_progress_bar
    total = len(methods) * sum(len(_items(task)) for task in tasks)
    with tqdm(total=total, desc="Word senses", unit=" sentences", disable=disable) as bar:
        for method in methods:
            bar.set_postfix_str(method.name)
            run = _Run(base, method, limit, layers, depth, results, command, sizes, bar.update)
            found += [result for task in tasks for result in run.results_of(task)]
            run.free()
    return found


class _Run:
    """One method's run over all tasks; its model is built where a result is missing, and once."""

    def __init__(
        self,
        base: Base,
        method: Method,
        limit: Limit,
        layers: Layers,
        depth: int | None,
        results: Results,
        command: str,
        sizes: Mapping[str, Any],
        progress: Callable[[int], object],
    ) -> None:
        self.base, self.method, self.limit, self.layers = base, method, limit, layers
        self.depth, self.results, self.command, self.sizes, self.progress = depth, results, command, sizes, progress
        self.model: SentenceTransformer | None = None

    def results_of(self, task: WordTask) -> list[Result]:
        """A result a layer, those that were there before included."""
        if self.depth is None and self.layers != "last":
            transformer: Any = self.built()[0]
            self.depth = transformer.depth
        # None stands for the last layer, whatever its number.
        numbers: list[int | None] = [None]
        if self.depth is not None:
            numbers = [None if n == self.depth else n for n in layer_numbers(self.layers, self.depth)]
        missing = [number for number in numbers if self.results.find(self.identity(task, number)) is None]
        if missing:
            self.score(task, missing)
        else:
            self.progress(len(_items(task)))
        return [result for number in numbers if (result := self.results.find(self.identity(task, number)))]

    def score(self, task: WordTask, numbers: Sequence[int | None]) -> None:
        """Answer a task's questions by the vectors of some layers, and keep the results."""
        model = self.built()
        items = _items(task)
        began = time.perf_counter()
        unseen = unseen_words(model, items)
        fault = {items[place]: reason for place, reason in unseen.items()}
        left_out = {reason: list(names) for reason, names in task.left_out.items()}
        asked: list[Question] = []
        blind: list[bool] = []
        for question in task.questions:
            reasons = {fault[item] for item in question.sentences if item in fault}
            if "on no token" in reasons:
                left_out.setdefault(DROPPED, []).append(question.name)
                continue
            if reasons:
                left_out.setdefault(UNSEEN, []).append(question.name)
            asked.append(question)
            blind.append(bool(reasons))
        if all(blind):
            raise ValueError(
                f"{task.name}: {self.method.name} sees the word of no question"
                + (f" within {self.limit.tokens} tokens. Raise --max-tokens." if self.limit.tokens else ".")
            )
        run = [item for item in items if item not in fault]
        self.progress(len(items) - len(run))
        layers: Layers = "last" if numbers == [None] else [-1 if number is None else number for number in numbers]
        vectors = encode_word_layers(model, run, layers, progress=self.progress, **self.sizes)
        places = {item: place for place, item in enumerate(run)}
        # A question that is not seen borrows any vectors; its answer does not count.
        rows = np.array([[places.get(item, 0) for item in question.sentences] for question in asked])
        answers = np.array([question.answer for question in asked])
        seen = ~np.array(blind)
        right = {}
        for layer, number in zip(vectors, numbers, strict=True):
            odd = odd_one_out(layer[rows])
            right.update({(number, name): (odd[name] == answers) & seen for name in odd})
        intervals = dict(zip(right, bootstrap_intervals(np.stack(list(right.values()), axis=1)), strict=True))
        shared: dict[str, Any] = {
            "kind": KIND,
            "task": task.name,
            "base": self.base.label,
            "method": self.method.name,
            "main": "accuracy cosine",
            "paper": "accuracy euclidean",
            "arguments": dict(self.method.arguments),
            "items": len(asked),
            "left_out": left_out,
            "texts": len(run),
            "tokens": _positions(model, run),
            "seconds": round(time.perf_counter() - began, 3),
            "command": self.command,
        }
        for number in numbers:
            self.results.add(
                Result(
                    identity=self.identity(task, number),
                    scores={f"accuracy {name}": float(right[number, name].mean()) for name in ("cosine", "euclidean")},
                    intervals={f"accuracy {name}": intervals[number, name] for name in ("cosine", "euclidean")},
                    settings={**self.settings(number), **({"seed": task.seed} if task.seed else {})},
                    **shared,
                )
            )

    def identity(self, task: WordTask, number: int | None) -> str:
        return identity(self.base, self.method, task=task.fingerprint, kind=KIND, **self.settings(number))

    def settings(self, number: int | None) -> dict[str, Any]:
        return {**({} if number is None else {"layer": number}), **self.limit.settings}

    def built(self) -> SentenceTransformer:
        if self.model is None:
            self.model = self.limit.build(self.method, self.base)
        return self.model

    def free(self) -> None:
        """Leave the memory to the next method's model."""
        if self.model is not None:
            self.model = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def _items(task: WordTask) -> list[Item]:
    """Each distinct word in its sentence, once."""
    return list(dict.fromkeys(item for question in task.questions for item in question.sentences))


def _positions(model: SentenceTransformer, items: Sequence[Item]) -> int:
    """Positions that a run takes, padding aside."""
    prompt = model.prompts.get(model.default_prompt_name) if model.default_prompt_name is not None else None
    return sum(copied_positions(model[0], [text for text, _ in items], prompt=prompt))  # type: ignore[arg-type]


def _depth(base: Base) -> int | None:
    """The model's number of layers, by its configuration; None: only the built model tells (an adapter's)."""
    hub = {"revision": base.revision, "trust_remote_code": base.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(locate(base.name)[0], **hub)
    except (OSError, ValueError, KeyError):
        return None
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    return depth if isinstance(depth, int) else None
