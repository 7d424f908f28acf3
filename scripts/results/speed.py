#!/usr/bin/env python
r"""Speed and memory beside what one would take instead: the tables of docs/results/speed.md.

    python scripts/results/speed.py STSB BASE BASE=FILE.gguf ... --trained MINILM \
        --llama-python PYTHON
    python scripts/results/speed.py STSB BASE --only default no-examples \
        --sentences 1000 --passages 0

STSB is a file of sentence pairs that `st-reba evaluate` reads, such as STSBenchmark's sts-test.csv:
its sentences are drawn at random, and joined to passages. BASE is a base's folder; after "=" stands
a GGUF file of it, which adds two rows: the last state of our default's prompt from that file, and
llama.cpp with the same file and the same token ids.

Every row is a process of its own. The rows of a table encode the same texts in turn, in every
second round in the opposite order. Printed are medians over the rounds, and each row's time as a
multiple of the classical mean's in the same round: the median, the least and the most. Positions
are those that a model computes, padding among them. The memory is the most that the process ever
held, loading included. All rows of a table are in memory at once: reckon with 2 GiB per row of a
base of 300 million weights.

PYTHON is that of an environment with llama-cpp-python, for example:

    python -m venv .venv-llama && .venv-llama/bin/pip install llama-cpp-python numpy
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import cast

from pages import replace_on_page
from speed_row import RowJob

from st_reba.evaluation import read_task
from st_reba.processor import multiplies_bfloat16
from st_reba.prompts import ENSEMBLES

ROW_SCRIPT = Path(__file__).with_name("speed_row.py")
PAGE = "speed.md"
REFERENCE = "classical"
Options = dict[str, object]


@dataclass(frozen=True)
class Case:
    """What a row of the tables runs: on the base, its GGUF file, or a trained model."""

    label: str
    runner_name: str = "st_reba"
    options: Options = field(default_factory=dict)
    model: str = "base"
    needs_bfloat16: bool = False


MEAN: Options = {"method": "classical", "pooling": "mean"}
# The default's prompt for what `encode` takes: as it is, and without its examples.
DEFAULT_PROMPT: Options = {"method": "prompteol", "template": "prompteol-word-4"}
NO_EXAMPLES: Options = {"method": "prompteol", "template": "prompteol-word", "read": "attention"}
ONE_QUESTION: Options = {"method": "prompteol", "template": ENSEMBLES["metaeol"][:1]}
THREE_QUESTIONS: Options = {"method": "prompteol", "template": ENSEMBLES["metaeol"][:3]}
FIVE_QUESTIONS: Options = {"method": "prompteol", "template": ENSEMBLES["metaeol"][:5]}
WHOLE: Options = {"shares_prefix": False}
BFLOAT16: Options = {"dtype": "bfloat16"}
CASES = {
    REFERENCE: Case("classical, mean", options=MEAN),
    "stock": Case(
        "sentence-transformers' own Transformer and Pooling, mean",
        "sentence-transformers",
    ),
    "default": Case("default (four examples)"),
    "default-whole": Case("default (four examples), whole rows", options=WHOLE),
    "no-examples": Case("default without examples", options=NO_EXAMPLES),
    "no-examples-whole": Case(
        "default without examples, whole rows",
        options=NO_EXAMPLES | WHOLE,
    ),
    "one-question": Case("one of these questions", options=ONE_QUESTION),
    "questions": Case("three questions of one text", options=THREE_QUESTIONS),
    "questions-whole": Case(
        "three questions of one text, whole rows",
        options=THREE_QUESTIONS | WHOLE,
    ),
    "five-questions": Case("five questions of one text", options=FIVE_QUESTIONS),
    "classical-bfloat16": Case(
        "classical, mean, bfloat16",
        options=MEAN | BFLOAT16,
        needs_bfloat16=True,
    ),
    "default-bfloat16": Case(
        "default, bfloat16",
        options=BFLOAT16,
        needs_bfloat16=True,
    ),
    "trained": Case("a trained model", "trained", model="trained"),
    # An engine gives only the last state.
    "gguf": Case(
        "the default's prompt, last state, from a GGUF file", options=DEFAULT_PROMPT, model="gguf"
    ),
    "llama.cpp": Case(
        "llama.cpp: the same prompt, state and file",
        "llama.cpp",
        model="gguf",
    ),
}


@dataclass(frozen=True)
class Base:
    """A base's folder, and its GGUF file."""

    folder: str
    gguf_file: str | None = None

    @property
    def name(self) -> str:
        """The folder's."""
        return Path(self.folder).resolve().name


def parse_base(argument: str) -> Base:
    """``FOLDER`` or ``FOLDER=FILE.gguf``; a path that does not exist is refused."""
    folder, _, gguf_file = argument.partition("=")
    if not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"{folder!r} is not a folder of a base")
    if gguf_file and not Path(gguf_file).is_file():
        raise argparse.ArgumentTypeError(f"{gguf_file!r} is not a GGUF file")
    return Base(folder, gguf_file or None)


@dataclass(frozen=True)
class Measurement:
    """What a row's process says of one round."""

    seconds: float
    position_count: int
    peak_memory: float


class RowProcess:
    """A process that encodes when it is asked to."""

    def __init__(
        self,
        label: str,
        job: RowJob,
        python: str,
        thread_count: int,
        error_log: Path,
    ) -> None:
        self.label = label
        self.measurements: dict[str, list[Measurement]] = {}
        for kind in job.texts_by_kind:
            self.measurements[kind] = []
        self.error_log = error_log
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(thread_count),
            "TOKENIZERS_PARALLELISM": "false",
        }
        with error_log.open("w", encoding="utf-8") as error_stream:
            self.process = subprocess.Popen(
                [python, str(ROW_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=error_stream,
                env=environment,
                text=True,
            )
        self.send(json.dumps(asdict(job)))

    def send(self, line: str) -> None:
        """Write a line to the process."""
        assert self.process.stdin is not None
        # If it has ended, the next answer is missing.
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def receive(self) -> object:
        """The next answer; an error that shows what the process wrote last, if it has ended."""
        assert self.process.stdout is not None
        answer_line = self.process.stdout.readline()
        if not answer_line:
            error_text = self.error_log.read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"The row {self.label!r} ended:\n{error_text[-2000:]}")
        return json.loads(answer_line)

    def ask(self, command: str, kind: str) -> object:
        """The answer to a command about the texts of a kind."""
        self.send(json.dumps([command, kind]))
        return self.receive()

    def measure(self, kind: str) -> None:
        """Encode all texts of a kind once."""
        answer = cast(dict[str, float], self.ask("encode", kind))
        measurement = Measurement(**answer)  # type: ignore[arg-type]
        self.measurements[kind].append(measurement)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def draw_sentences(pairs_file: Path) -> list[str]:
    """The distinct sentences of a file of pairs, in random order."""
    sentences = sorted(set(read_task(pairs_file).texts))
    random.Random(0).shuffle(sentences)
    return sentences


def join_passages(sentences: Sequence[str], count: int, word_count: int) -> list[str]:
    """Passages of ``word_count`` words each, out of sentences that follow each other."""
    words = " ".join(sentences).split()
    if count * word_count > len(words):
        raise SystemExit(f"--passages {count}: the file holds {len(words)} words. Ask for fewer.")
    passages: list[str] = []
    for start in range(0, count * word_count, word_count):
        passage_words = words[start : start + word_count]
        passages.append(" ".join(passage_words))
    return passages


def selected_cases(options: argparse.Namespace, base: Base) -> dict[str, Case]:
    """The cases that were asked for and can run here."""
    selection: dict[str, Case] = {}
    has_bfloat16 = multiplies_bfloat16()
    for name, case in CASES.items():
        is_asked_for = name in options.only or name == REFERENCE
        # llama.cpp gets its token ids from that row, and is compared with it.
        is_asked_for |= name == "gguf" and "llama.cpp" in options.only
        lacks_model = case.model == "gguf" and base.gguf_file is None
        lacks_model |= case.model == "trained" and options.trained is None
        lacks_engine = name == "llama.cpp" and options.llama_python is None
        lacks_bfloat16 = case.needs_bfloat16 and not has_bfloat16
        if is_asked_for and not (lacks_model or lacks_engine or lacks_bfloat16):
            selection[name] = case
    return selection


class BaseRun:
    """The rows of a base's tables: one table for texts of each kind."""

    def __init__(
        self,
        options: argparse.Namespace,
        base: Base,
        texts_by_kind: dict[str, list[str]],
        log_folder: Path,
    ) -> None:
        self.options = options
        self.base = base
        self.texts_by_kind = texts_by_kind
        self.log_folder = log_folder
        self.rows: dict[str, RowProcess] = {}

    def start(self) -> None:
        """Start all processes, as many at a time as there are threads, and wait until they can encode."""
        cases = selected_cases(self.options, self.base)
        names = list(cases)
        at_once = self.options.threads
        if "llama.cpp" in names:
            # It asks another row for its texts.
            names.remove("llama.cpp")
        for first_name in range(0, len(names), at_once):
            starting_names = names[first_name : first_name + at_once]
            for name in starting_names:
                self.start_row(name, cases[name])
            for name in starting_names:
                self.rows[name].receive()
        if "llama.cpp" in cases:
            self.start_row("llama.cpp", cases["llama.cpp"])
            self.rows["llama.cpp"].receive()

    def start_row(self, name: str, case: Case) -> None:
        """Start the process of a case."""
        model_paths = {
            "base": self.base.folder,
            "gguf": self.base.gguf_file,
            "trained": self.options.trained,
        }
        model_path = str(model_paths[case.model])
        label = case.label
        python = sys.executable
        job = RowJob(case.runner_name, model_path, self.texts_by_kind, case.options)
        if name == "trained":
            label = Path(model_path).resolve().name
        if name == "llama.cpp":
            python = self.options.llama_python
            job = self.llama_job(model_path)
        error_log = self.log_folder / f"{name}.log"
        self.rows[name] = RowProcess(label, job, python, self.options.threads, error_log)

    def llama_job(self, gguf_file: str) -> RowJob:
        """The job of llama.cpp, which gets the token ids of our row."""
        longest_row = 0
        ids_by_kind: dict[str, list[str]] = {}
        for kind in self.texts_by_kind:
            row_ids = cast(list[list[int]], self.rows["gguf"].ask("prompt ids", kind))
            longest_row = max(longest_row, *map(len, row_ids))
            ids_by_kind[kind] = [json.dumps(token_ids) for token_ids in row_ids]
        runner_options: dict[str, object] = {
            "thread_count": self.options.threads,
            # llama.cpp's own default, if the texts leave it.
            "context_length": max(512, longest_row),
        }
        return RowJob("llama.cpp", gguf_file, ids_by_kind, runner_options)

    def measure(self, kind: str) -> str:
        """Let the rows encode in turn; their table in Markdown."""
        ordered_rows = list(self.rows.values())
        for _ in range(self.options.rounds):
            for row in ordered_rows:
                row.measure(kind)
            # No row always runs after the same one.
            ordered_rows.reverse()
        lines = [
            "| | texts a second | positions a second | GiB | × classical | least, most |",
            "|---|--:|--:|--:|--:|---|",
        ]
        for row in self.rows.values():
            lines.append(self.describe_row(row, kind))
        if "llama.cpp" in self.rows:
            lines += ["", self.compare_llama(kind)]
        return "\n".join(lines)

    def describe_row(self, row: RowProcess, kind: str) -> str:
        """A row's line of the table."""
        measurements = row.measurements[kind]
        reference_measurements = self.rows[REFERENCE].measurements[kind]
        ratios: list[float] = []
        for measured, compared in zip(measurements, reference_measurements, strict=True):
            ratios.append(measured.seconds / compared.seconds)
        seconds = statistics.median(measured.seconds for measured in measurements)
        last_measurement = measurements[-1]
        texts_per_second = len(self.texts_by_kind[kind]) / seconds
        positions_per_second = last_measurement.position_count / seconds
        cells = [
            row.label,
            f"{texts_per_second:.1f}",
            f"{positions_per_second:,.0f}",
            f"{last_measurement.peak_memory:.2f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        ]
        return f"| {' | '.join(cells)} |"

    def compare_llama(self, kind: str) -> str:
        """Cosines of the vectors of llama.cpp with ours from the same file."""
        our_vectors = cast(list[list[float]], self.rows["gguf"].ask("vectors", kind))
        llama_vectors = cast(list[list[float]], self.rows["llama.cpp"].ask("vectors", kind))
        cosines: list[float] = []
        for our_vector, llama_vector in zip(our_vectors, llama_vectors, strict=True):
            dot_product = sum(map(operator.mul, our_vector, llama_vector))
            norms = math.hypot(*our_vector) * math.hypot(*llama_vector)
            cosines.append(dot_product / norms)
        return (
            f"Cosine of llama.cpp's vectors with ours from the same file, {len(cosines)} texts: "
            f"lowest {min(cosines):.4f}, mean {statistics.mean(cosines):.4f}."
        )

    def close(self) -> None:
        """End all processes."""
        for row in self.rows.values():
            row.close()


def describe_setting(options: argparse.Namespace) -> str:
    """The versions and sizes behind the tables."""
    names = ("torch", "transformers", "sentence-transformers")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    instructions = "with" if multiplies_bfloat16() else "without"
    return (
        f"{options.threads} threads of a processor {instructions} instructions for bfloat16; {versions}; "
        f"{options.rounds} rounds."
    )


def measure_base(
    options: argparse.Namespace,
    base: Base,
    texts_by_kind: dict[str, list[str]],
) -> dict[str, str]:
    """The tables of a base, by the names of their places on the page."""
    tables: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as log_folder:
        base_run = BaseRun(options, base, texts_by_kind, Path(log_folder))
        try:
            base_run.start()
            # Short texts first: what long ones hold at most is more.
            for kind in texts_by_kind:
                name = f"{base.name} {kind}"
                tables[name] = base_run.measure(kind)
                print(f"\n{name}\n\n{tables[name]}", flush=True)
        finally:
            base_run.close()
    return tables


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pairs", metavar="STSB", type=Path)
    parser.add_argument("bases", metavar="BASE", nargs="+", type=parse_base)
    parser.add_argument(
        "--trained", metavar="FOLDER", help="a trained model of sentence-transformers"
    )
    parser.add_argument("--llama-python", metavar="PYTHON", help="see above")
    parser.add_argument("--sentences", type=int, default=96, help="how many (default: 96)")
    parser.add_argument("--passages", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--words", type=int, default=200, help="of a passage (default: 200)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="of every row (default: one a processor)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        metavar="CASE",
        help=f"rows, of {', '.join(CASES)}; {REFERENCE} is always there",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the tables into docs/results/speed.md, between <!-- FOLDER sentences --> and <!-- end -->",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    sentences = draw_sentences(options.pairs)
    texts_by_kind: dict[str, list[str]] = {}
    if options.sentences:
        texts_by_kind["sentences"] = sentences[: options.sentences]
    if options.passages:
        texts_by_kind["passages"] = join_passages(sentences, options.passages, options.words)
    outputs = {"setting": describe_setting(options)}
    print(outputs["setting"], flush=True)
    for base in options.bases:
        outputs |= measure_base(options, base, texts_by_kind)
    if options.write:
        for name, text in outputs.items():
            replace_on_page(PAGE, name, text)


if __name__ == "__main__":
    main()
