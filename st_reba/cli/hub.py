"""The commands around a published repository: verify."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from .options import add_running, new_command


def add_verify(commands: Any) -> None:
    command = new_command(
        commands,
        "verify",
        "Hold a saved model against the vectors that it gave when it was saved, status 1 where they differ; or an\n"
        "index against the digests of what was written.",
        "  st-reba verify my_model\n  st-reba verify my_model_onnx\n"
        "  st-reba verify organization/model --revision main --json\n  st-reba verify my_index",
        verify,
    )
    command.add_argument(
        "model", metavar="MODEL", help="a folder that st-reba build, export-onnx or index wrote, or a Hub id"
    )
    command.add_argument("--revision", help="Hub revision")
    command.add_argument("--json", action="store_true", help="print the result of each text as JSON")
    add_running(command)


def verify(options: argparse.Namespace) -> int:
    if os.path.isfile(os.path.join(options.model, "index.sqlite")):
        from .index import verify_index

        print(verify_index(Path(options.model)))
        return 0
    from ..hub.verify import verify as verify_model

    report = verify_model(
        options.model,
        device=options.device,
        dtype=options.dtype,
        revision=options.revision,
        trust_remote_code=options.trust_remote_code,
    )
    print(json.dumps(report.to_dict(), ensure_ascii=False, indent=2) if options.json else report)
    return 0 if report.ok else 1
