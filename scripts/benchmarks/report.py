"""What is printed and written: a header, tables, aims, growth; Markdown and JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .batches import REALISTIC
from .growth import grown, growth_lines
from .measuring import Record
from .mistakes import UsageError
from .models import describe


@dataclass(frozen=True)
class Report:
    """One run of the benchmark.

    Args:
        head: What a reader needs to know to judge the numbers, and to get them again.
        notes: What was left out, and why.
        records: What was measured.
        file: Written anew after every case, so that a run that is killed loses one case at most; None: nowhere.
    """

    head: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    file: Path | None = None

    def add(self, records: Iterable[Record]) -> None:
        """One case more."""
        self.records.extend(records)
        if self.file is not None:
            self.file.write_text(self.as_json(), encoding="utf-8")

    def as_json(self) -> str:
        """All of it."""
        content = {
            "header": self.head,
            "notes": self.notes,
            "records": [record.as_json() for record in self.records],
            "growth": [each.as_json() for each in grown(self.records)],
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, file: Path) -> Report:
        """What :meth:`as_json` gave.

        Raises:
            UsageError: The file is none of ours.
        """
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            report = cls(content["header"], content["notes"], [Record.from_json(each) for each in content["records"]])
            # Whether all is there that will be told.
            report.as_markdown(), report.name, report.title
            return report
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{file}: not what --json writes ({error!r}). Name such a file.") from error

    @property
    def name(self) -> str:
        """A word for file names."""
        return str(self.head["name"])

    @property
    def title(self) -> str:
        """Two lines on what was measured, and where."""
        head = self.head
        threads = "1 thread" if head["threads"] == 1 else f"{head['threads']} threads"
        return f"{head['model']}\n{head['dtype']}, {head['device']}, {threads}"

    def as_markdown(self) -> str:
        """A list of what was run, a table a case, whether the aims were met, and how cost grows."""
        lines = _head_lines(self.head)
        if any(record.case.get("lengths") == "realistic" for record in self.records):
            lines.append(f"- realistic lengths: {self.head['realistic']}")
        lines += [f"- {note}" for note in self.notes]
        cases: list[list[Record]] = []
        for record in self.records:
            if not cases or (record.part, record.case) != (cases[-1][0].part, cases[-1][0].case):
                cases.append([])
            cases[-1].append(record)
        for case in cases:
            lines += _table(case)
        lines += _aim_lines(self.records)
        lines += growth_lines(grown(self.records))
        return "\n".join(lines) + "\n"


def header(options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """What a reader needs to know to judge the numbers, and to get them again."""
    import sentence_transformers
    import torch
    import transformers

    import st_reba

    return {
        "command": shlex.join(["python", "scripts/benchmark.py", *arguments]),
        "name": f"{options.model}-{options.dtype}-{options.device}",
        "model": describe(options.model),
        "dtype": options.dtype,
        "device": f"{options.device} ({device_name(options.device)})",
        "threads": torch.get_num_threads(),
        "threads_chosen_by": "--threads" if options.threads else "torch",
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "clock": options.clock,
        "rounds": options.rounds,
        "case_limit": options.case_limit,
        "seed": options.seed,
        "keeps_memory": options.keeps_memory,
        "peak_memory": "of torch's allocator, above the weights"
        if options.device == "cuda"
        else "of the tensors that a run made and that lived at one time; what is taken within an operator not counted",
        "realistic": REALISTIC,
        "versions": {
            "st_reba": st_reba.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sentence_transformers": sentence_transformers.__version__,
            "python": platform.python_version(),
        },
    }


def device_name(device: str) -> str:
    """What the makers call it."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    capability = torch.backends.cpu.get_cpu_capability()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {capability}"


def _head_lines(head: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    limit = "" if head["case_limit"] is None else f", of which none begins after {head['case_limit']:g} s of a case"
    return [
        f"- `{head['command']}`",
        f"- {head['model']}, {head['dtype']}, {head['device']}, {head['threads']} of {head['processors']} threads "
        f"(chosen by {head['threads_chosen_by']}), seed {head['seed']}",
        f"- {versions}",
        f"- ratio: {head['clock']} time to the mean of the runs of the first row directly before and after, median "
        f"(min–max) of at most {head['rounds']} rounds{limit}; seconds: median; tokens: of the content, counted once",
        f"- memory: {head['peak_memory']}"
        + ("; freed memory stays with the process while time is measured" if head["keeps_memory"] else "")
        + "; its ratio is to the first row's",
    ]


# Columns that only some parts have: name, and what is shown of a record's detail.
_DETAILS = {"passes": "{:.2f}", "copies": "{}", "batches": "{}", "padding": "{:.1%}"}


def _table(case: Sequence[Record]) -> list[str]:
    """One case: a title and a row a variant."""
    details = [name for name in _DETAILS if any(name in record.detail for record in case)]
    rates = ["texts/s", "tokens/s"] if "texts" in case[0].case else ["tokens/s"]
    names = ["", *details, "ratio", "aim", "seconds", *rates, "peak MiB", "memory ratio"]
    marks = ["---" if name in ("", "aim") else "--:" for name in names]
    rows = [f"| {' | '.join(_cells(record, details))} |" for record in case]
    return [
        "",
        f"### {case[0].part}: {_told(case[0].case)}, rounds: {case[0].rounds}",
        "",
        f"| {' | '.join(names)} |",
        f"|{'|'.join(marks)}|",
        *rows,
    ]


def _told(case: Mapping[str, Any]) -> str:
    """A case in words."""
    words = {"length": "n = {}", "lengths": "{} lengths", "batch_size": "batch of {}", "tokens": "{} tokens"}
    other = {name: f"{name.replace('_', ' ')} {{}}" for name in case}
    # Batches are told by their size; whether that is what fits stands in the JSON.
    return ", ".join({**other, **words}[name].format(value) for name, value in case.items() if name != "batch")


def _cells(record: Record, details: Iterable[str]) -> Iterator[str]:
    yield record.variant
    for name in details:
        yield _DETAILS[name].format(record.detail[name]) if name in record.detail else ""
    yield str(record.ratio)
    yield "; ".join(map(str, record.aims))
    yield f"{record.seconds.median:.3f}" if record.seconds.median >= 0.1 else f"{record.seconds.median:.2g}"
    if "texts" in record.case:
        yield f"{record.case['texts'] / record.seconds.median:.1f}"
    yield f"{record.tokens_per_second:.0f}"
    yield "–" if record.peak_bytes is None else f"{record.peak_bytes / 2**20:.0f}"
    yield "–" if record.memory_ratio is None else f"{record.memory_ratio:.2f}"


def _aim_lines(records: Sequence[Record]) -> list[str]:
    """How many aims were met, and which were not."""
    verdicts = [(record, verdict) for record in records for verdict in record.aims]
    if not verdicts:
        return []
    counts = {name: sum(each.met is met for _, each in verdicts) for name, met in (("met", True), ("missed", False))}
    unknown = len(verdicts) - sum(counts.values())
    told = f"{counts['met']} met, {counts['missed']} missed" + (f", {unknown} not measured" if unknown else "")
    lines = ["", f"### aims: {told}"]
    missed = [(record, verdict) for record, verdict in verdicts if verdict.met is False]
    if missed:
        lines.append("")
    for record, verdict in missed:
        case = {name: value for name, value in record.case.items() if name in _NAMED}
        lines.append(f"- {record.variant} ({_told(case)}): {verdict.aim}, measured {verdict.shown}")
    return lines


# What of a case tells it apart from others.
_NAMED = ("length", "lengths", "batch_size", "padding")
