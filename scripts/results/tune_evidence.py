"""Every candidate of tune's space, by views of unlabelled texts and by labels.

    python scripts/results/tune_evidence.py BASE DATA OUT.jsonl --sets STS-B STS13-16 StackOverflow
    python scripts/results/tune_evidence.py BASE DATA OUT.jsonl    # the table of what is there

DATA is a folder of public sets (sts/, clustering/, classification/, ranking/, pairs/). Passes that
OUT.jsonl has are not run again. Quality is Spearman's correlation (pairs), the share of texts whose
nearest centroid is of their class (topics), or mean average precision (search), on rows of another
split than the texts that views are made of.

The best of hundreds is partly luck. "By labels" is the best on one half of the rows, compared on
the other half (mean over 50 splits). "Truth / best": on rows drawn again, the score of the truly
best candidate divided by that of the one that looks best.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize

from st_reba.encode import computed_positions
from st_reba.evaluation import Task, read_task
from st_reba.evaluation.kinds.views import views_of
from st_reba.evaluation.readouts import (
    build_on,
    depth_of,
    encode_methods,
    group_by_pass,
    load_base,
)
from st_reba.evaluation.results import markdown
from st_reba.evaluation.tables import read_frame
from st_reba.evaluation.task import find_kind
from st_reba.evaluation.texts import draw_texts, script_of
from st_reba.evaluation.trials import Candidate, select_best
from st_reba.evaluation.tried_methods import default_on, similarity_methods
from st_reba.evaluation.vectors import remove_directions
from st_reba.methods import Method

# Labelled rows, and unlabelled texts, of a set.
LABELLED_ROWS = 200
UNLABELLED_TEXTS = 120

Row = tuple[Any, ...]
Line = dict[str, Any]
"""A candidate on a set: its method and cost, and the evidence of views and labels."""
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class EvidenceSet:
    """Labelled rows of a kind of task, and texts of another split."""

    kind: str
    rows: Sequence[Row]
    texts: Sequence[str]


def draw_rows(rows: Sequence[Row], count: int) -> list[Row]:
    """As many rows, in random order, or all."""
    return Random(0).sample(rows, min(count, len(rows)))


def read_pairs(*files: Path) -> list[Row]:
    """Scored pairs of files."""
    frames: list[pd.DataFrame] = []
    for file in files:
        frame = read_frame(file)[["text1", "text2", "score"]]
        frames.append(frame.astype({"score": float}))
    return list(pd.concat(frames).itertuples(index=False, name=None))


def read_lines(path: Path) -> list[Line]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def texts_of_pairs(rows: Iterable[Row]) -> list[str]:
    """The texts of pairs, each once."""
    texts: dict[str, None] = {}
    for first_text, second_text, _ in rows:
        texts |= {first_text: None, second_text: None}
    return list(texts)


def make_class_set(rows: Iterable[Row]) -> EvidenceSet:
    """Half of the texts with their classes, and the other half without."""
    drawn_rows = draw_rows(list(dict(rows).items()), 2000)
    half = len(drawn_rows) // 2
    labelled_rows = drawn_rows[: min(half, 3 * LABELLED_ROWS // 2)]
    return EvidenceSet(
        "Classification",
        labelled_rows,
        [text for text, _ in drawn_rows[half:]],
    )


def read_stsb(
    data_folder: Path,
    test_name: str,
    dev_name: str,
) -> EvidenceSet:
    """A test part with labels, and a dev part without."""
    test_rows = draw_rows(read_pairs(data_folder / "sts" / test_name), LABELLED_ROWS)
    return EvidenceSet("STS", test_rows, texts_of_pairs(read_pairs(data_folder / "sts" / dev_name)))


def read_later_years(data_folder: Path) -> EvidenceSet:
    """STS 2013 to 2016, and texts of STS-B's dev part."""
    rows: list[Row] = []
    for year in (13, 14, 15, 16):
        files = sorted(data_folder.glob(f"sts/semeval/20{year}.*"))
        rows += draw_rows(read_pairs(*files), 1000)
    return EvidenceSet(
        "STS",
        draw_rows(rows, LABELLED_ROWS),
        texts_of_pairs(read_pairs(data_folder / "sts/sts-dev.csv")),
    )


def read_2012(data_folder: Path) -> EvidenceSet:
    """STS 2012."""
    files = sorted(data_folder.glob("sts/semeval/2012.*"))
    # Drawn twice, as the published rows were.
    rows = draw_rows(draw_rows(read_pairs(*files), 4000), 4000)
    return EvidenceSet("STS", rows[:LABELLED_ROWS], texts_of_pairs(rows[1000:]))


def read_stackoverflow(data_folder: Path) -> EvidenceSet:
    """Titles of questions with their topics."""
    columns: list[list[str]] = []
    for name in ("title", "label"):
        path = data_folder / f"clustering/{name}_StackOverflow.txt"
        columns.append(path.read_text(encoding="utf-8").strip().split("\n"))
    return make_class_set(zip(*columns, strict=True))


def read_afqmc(data_folder: Path) -> EvidenceSet:
    """Questions of customers that are alike or not."""
    pair_of = itemgetter("sentence1", "sentence2")
    lines = read_lines(data_folder / "sts/afqmc-dev.jsonl")
    rows = draw_rows(
        [(*pair_of(line), float(line["label"])) for line in lines],
        4000,
    )
    return EvidenceSet(
        "STS",
        rows[: 2 * LABELLED_ROWS],
        texts_of_pairs(rows[1000:2000]),
    )


def read_ocnli(data_folder: Path) -> EvidenceSet:
    """Sentences that follow from each other, or contradict each other."""
    scores = {"entailment": 1.0, "contradiction": 0.0}
    rows: list[Row] = []
    for line in read_lines(data_folder / "pairs/ocnli-dev.jsonl"):
        if line["label"] in scores:
            rows.append((line["sentence1"], line["sentence2"], scores[line["label"]]))
    rows = draw_rows(rows, 1800)
    return EvidenceSet("STS", rows[: 2 * LABELLED_ROWS], texts_of_pairs(rows[800:]))


def read_qbqtc(data_folder: Path) -> EvidenceSet:
    """Queries with judged documents; documents of queries that have one are the texts."""
    rows_of_query: dict[str, list[Row]] = {}
    for line in read_lines(data_folder / "ranking/qbqtc-dev.json"):
        row = (line["query"], line["title"], float(line["label"]))
        rows_of_query.setdefault(line["query"], []).append(row)
    rankings: list[list[Row]] = []
    single_documents: list[str] = []
    for rows in rows_of_query.values():
        if len(rows) == 1:
            single_documents.append(rows[0][1])
        if 0 < sum(grade > 0 for _, _, grade in rows) < len(rows):
            rankings.append(rows)
    judged_rows = sum(rankings[:LABELLED_ROWS], [])
    drawn_documents = Random(0).sample(
        single_documents,
        min(1000, len(single_documents)),
    )
    return EvidenceSet("Reranking", judged_rows, drawn_documents)


def read_tnews(data_folder: Path) -> EvidenceSet:
    """Headlines with their topics."""
    rows: list[Row] = []
    for split in ("train_few_all", "dev_few_all", "test_public"):
        for line in read_lines(data_folder / f"classification/tnews/{split}.json"):
            if "label_desc" in line:
                rows.append((line["sentence"], line["label_desc"]))
    return make_class_set(rows)


SETS: dict[str, Callable[[Path], EvidenceSet]] = {
    "STS-B": partial(read_stsb, test_name="sts-test.csv", dev_name="sts-dev.csv"),
    "STS13-16": read_later_years,
    "STS12": read_2012,
    "StackOverflow": read_stackoverflow,
    "STS-B-zh": partial(read_stsb, test_name="cnsd-sts-test.txt", dev_name="cnsd-sts-dev.txt"),
    "AFQMC": read_afqmc,
    "OCNLI": read_ocnli,
    "QBQTC": read_qbqtc,
    "TNEWS": read_tnews,
}


@dataclass(frozen=True)
class SetRunner:
    """Runs passes on a set: views of its texts, and its labelled items."""

    base_model: SentenceTransformer
    set_name: str
    views: Task
    labelled_task: Task

    @classmethod
    def read(
        cls,
        base_model: SentenceTransformer,
        set_name: str,
        data_folder: Path,
    ) -> SetRunner:
        """Read a set; no text has views and a label."""
        evidence_set = SETS[set_name](data_folder)
        roles = list(find_kind(evidence_set.kind).column_readers)
        labelled_task = read_task(
            pd.DataFrame(evidence_set.rows, columns=roles),
            evidence_set.kind,
        )
        labelled_texts = set(labelled_task.texts)
        unlabelled_texts = [text for text in evidence_set.texts if text not in labelled_texts]
        views = views_of(draw_texts(unlabelled_texts, UNLABELLED_TEXTS))
        return cls(base_model, set_name, views, labelled_task)

    @property
    def script(self) -> str:
        """The script of most texts."""
        return script_of(" ".join(self.views.texts[:400]))

    def passes(self) -> list[list[Method]]:
        """The methods of each pass that tune tries."""
        depth = depth_of(self.base_model)
        return list(group_by_pass(similarity_methods(depth, self.script), depth).values())

    def run(self, methods: Sequence[Method]) -> list[Line]:
        """A line for each method of a pass: evidence of views, and of labelled items without and with a filter."""
        depth = depth_of(self.base_model)
        default = default_on(self.base_model, self.script)
        model = build_on(self.base_model, methods[0], check=False)
        texts = list(
            dict.fromkeys(
                [
                    *self.views.texts,
                    *self.labelled_task.texts,
                ]
            )
        )
        view_rows = list(map(texts.index, self.views.texts))
        labelled_rows = list(map(texts.index, self.labelled_task.texts))
        model_positions = sum(computed_positions(model[0], self.views.texts, {}))
        base_positions = sum(computed_positions(self.base_model[0], self.views.texts, {}))
        lines: list[Line] = []
        for method, vectors in encode_methods(self.base_model, methods, texts).items():
            unit_vectors = normalize(torch.from_numpy(vectors), dim=1)
            view_vectors = unit_vectors[view_rows]
            labelled_vectors = unit_vectors[labelled_rows]
            facts = {
                "set": self.set_name,
                "pass": str(methods[0]),
                "method": str(method),
                "cost": model_positions / base_positions / depth * method.read_layers(depth)[1],
                "default": method == default,
            }
            plain_scores = self.score(view_vectors, labelled_vectors)
            lines.append({**facts, "filter": None, **plain_scores})
            filtered_scores = self.score(
                remove_directions(view_vectors), remove_directions(labelled_vectors, view_vectors)
            )
            lines.append({**facts, "filter": "abtt", **filtered_scores})
        return lines

    def score(self, view_vectors: Tensor, labelled_vectors: Tensor) -> dict[str, list[float]]:
        """The scores of views, and of labelled items."""
        view_scores = self.views.task_kind.score_items(self.views, view_vectors)
        labelled_scores = self.labelled_task.task_kind.score_items(
            self.labelled_task, labelled_vectors
        )
        return {
            "views": [round(float(score), 3) for score in view_scores],
            "labels": [round(float(score), 3) for score in labelled_scores],
        }


def is_published(method: Method) -> bool:
    """A paper's own setting; NoSink's is classical with masks here."""
    is_published_prompt = (method.name, method.template) == ("prompteol", "prompteol-zh")
    if method.template is not None and not is_published_prompt:
        return False
    return method.layer is None and (method.setting is None or method.name == "classical")


def compare_by_labels(candidate_scores: Scores, choice_scores: Scores) -> float:
    """The choice's quality, divided by that of the best on the other half of the rows.

    Args:
        candidate_scores: [candidates, rows].
        choice_scores: [rows].
    """
    generator = np.random.default_rng(0)
    choice_sum = 0.0
    labelled_sum = 0.0
    for _ in range(50):
        order = generator.permutation(len(choice_scores))
        first_half = order[::2]
        second_half = order[1::2]
        for choosing_rows, comparing_rows in ((first_half, second_half), (second_half, first_half)):
            best_candidate = candidate_scores[:, choosing_rows].mean(axis=1).argmax()
            choice_sum += choice_scores[comparing_rows].mean()
            labelled_sum += candidate_scores[best_candidate][comparing_rows].mean()
    return choice_sum / labelled_sum


def remove_luck(candidate_scores: Scores) -> float:
    """The best candidate's quality, divided by that of the luckiest on rows that are drawn again (500 times)."""
    row_count = candidate_scores.shape[1]
    generator = np.random.default_rng(0)
    draws = generator.multinomial(
        row_count,
        np.full(row_count, 1 / row_count),
        size=500,
    )
    drawn_means = candidate_scores @ draws.T / row_count
    best_candidate = candidate_scores.mean(axis=1).argmax()
    return float(drawn_means[best_candidate].mean() / drawn_means.max(axis=0).mean())


def choose_line(lines: Sequence[Line]) -> Line:
    """The candidate that tune chooses by views: the default, unless another is clearly better."""
    candidates: list[Candidate] = []
    default: Candidate | None = None
    for line in lines:
        method = Method.parse(line["method"])
        view_scores = torch.tensor(line["views"])
        candidate = Candidate(method, line["filter"], line["cost"], view_scores)
        candidates.append(candidate)
        if line["default"] and line["filter"] is None:
            default = candidate
    return lines[candidates.index(select_best(candidates, default=default))]


def summarize_set(lines: Sequence[Line]) -> Mapping[str, object]:
    """tune's choice for a set, beside the best of all, the default, the papers' methods, and the plain mean."""
    choice = choose_line(lines)
    candidate_scores = np.array([line["labels"] for line in lines])
    choice_scores = np.array(choice["labels"])
    best_scores = candidate_scores[candidate_scores.mean(axis=1).argmax()]
    differences = best_scores - choice_scores
    quality = choice_scores.mean()
    published: dict[str, float] = {}
    default_quality = np.nan
    for line in lines:
        if line["filter"] is not None:
            continue
        if line["default"]:
            default_quality = float(np.mean(line["labels"]))
        if is_published(Method.parse(line["method"])):
            published[line["method"]] = float(np.mean(line["labels"]))
    chosen = "the default" if choice["default"] else choice["method"]
    if choice["filter"] is not None:
        chosen += " + filter"
    return {
        "set": choice["set"],
        "chosen": chosen,
        "choice": quality,
        "best": best_scores.mean(),
        "± 1 s.e.": differences.std(ddof=1) / len(differences) ** 0.5,
        "/ best": quality / best_scores.mean(),
        "truth / best": remove_luck(candidate_scores),
        "/ by labels": compare_by_labels(candidate_scores, choice_scores),
        "/ default": quality / default_quality,
        "/ best paper's": quality / max(published.values()),
        "/ plain mean": quality / published.get("classical:pooling=mean", np.nan),
    }


def format_table(lines: Iterable[Line]) -> str:
    """A row a set."""
    lines_of_set: dict[str, list[Line]] = {}
    for line in lines:
        lines_of_set.setdefault(line["set"], []).append(line)
    rows = list(map(summarize_set, lines_of_set.values()))
    return markdown(pd.DataFrame(rows).set_index("set"))


def main() -> None:
    """Run the passes that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", nargs="+", default=[], choices=SETS)
    options = parser.parse_args()
    lines = read_lines(options.out) if options.out.exists() else []
    finished_passes = {(line["set"], line["pass"]) for line in lines}
    base_model: SentenceTransformer | None = None
    for set_name in options.sets:
        if base_model is None:
            base_model = load_base(options.base, dtype="bfloat16", max_seq_length=256)
        runner = SetRunner.read(base_model, set_name, options.data)
        for methods in runner.passes():
            if (set_name, str(methods[0])) in finished_passes:
                continue
            new_lines = runner.run(methods)
            lines += new_lines
            with options.out.open("a", encoding="utf-8") as stream:
                stream.writelines(json.dumps(line) + "\n" for line in new_lines)
            print(set_name, methods[0], file=sys.stderr)
    print(format_table(lines))


if __name__ == "__main__":
    main()
