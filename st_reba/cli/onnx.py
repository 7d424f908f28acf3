"""The command that writes a model as an ONNX graph: export-onnx."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .options import new_command


def add_export_onnx(commands: Any) -> None:
    command = new_command(
        commands,
        "export-onnx",
        "Write a saved model as one ONNX graph in a folder of stock modules, which needs no st_reba.\n"
        "It runs in onnxruntime with tokenizers alone, and in sentence-transformers' onnx and openvino backends.\n"
        "st-reba verify and st-reba push take the folder like a saved model's.",
        "  st-reba export-onnx my_model my_model_onnx\n"
        "  st-reba export-onnx my_model my_queries_onnx --task query --quantize int8 --texts sample.txt",
        export_onnx,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build wrote, or a Hub id")
    command.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    command.add_argument(
        "--task", choices=("query", "document"), help="whose template and prompt the graph holds, where they differ"
    )
    command.add_argument(
        "--quantize",
        choices=("int8",),
        help="also write onnx/model_int8.onnx, and what it loses; its vectors depend on their batch",
    )
    command.add_argument("--texts", type=Path, metavar="FILE", help="texts, one a line, to check and measure on")
    command.add_argument("--overwrite", action="store_true", help="replace an exported model that is there")
    command.add_argument("--trust-remote-code", action="store_true", help="allow the model's own Python code")
    command.add_argument("--json", action="store_true", help="print JSON")


def export_onnx(options: argparse.Namespace) -> None:
    from ..hub.onnx import check_out
    from ..hub.onnx import export_onnx as export
    from ..persistence import load

    check_out(options.out, overwrite=options.overwrite)
    texts: list[str] = []
    if options.texts is not None:
        texts = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    model = load(options.model, device="cpu", dtype="float32", trust_remote_code=options.trust_remote_code)
    report = export(
        model,
        options.out,
        task=options.task,
        overwrite=options.overwrite,
        int8=options.quantize == "int8",
        texts=texts,
    )
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{options.out}: {report['graph']}, {sum(report['bytes'].values()):,} bytes")
    print(f"vectors differ from torch's by {report['difference']:.1e} of their scale")
    if "int8" in report:
        print(f"{report['int8']['graph']}, {report['int8']['bytes']['int8']:,} bytes; cosines to float32:")
        for name in ("alone_against_float32", "batched_against_float32", "batched_against_alone"):
            print(f"  {name.replace('_', ' ')}: min {report['int8'][name]['min']}, mean {report['int8'][name]['mean']}")
