"""The commands around a published repository: verify."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .options import add_running, new_command


def add_verify(commands: Any) -> None:
    command = new_command(
        commands,
        "verify",
        "Hold a saved model against the vectors that it gave when it was saved; status 1 where they differ.",
        "  st-reba verify my_model\n  st-reba verify my_model_onnx\n"
        "  st-reba verify organization/model --revision main --json",
        verify,
    )
    command.add_argument("model", metavar="MODEL", help="a folder that st-reba build or export-onnx wrote, or a Hub id")
    command.add_argument("--revision", help="Hub revision")
    command.add_argument("--json", action="store_true", help="print the result of each text as JSON")
    add_running(command)


def verify(options: argparse.Namespace) -> int:
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
