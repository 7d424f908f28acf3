"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

Base = Annotated[
    str,
    Argument(
        metavar="BASE",
        help="mini, smollm2, a folder, a Hub id, a GGUF file, recipe.yaml or zoo:NAME.",
    ),
]
Model = Annotated[str, Argument(metavar="MODEL", help="Saved model: a folder or Hub id.")]
Out = Annotated[Path, Argument(metavar="OUT", help="Folder to write.")]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace what is there.")]
Device = Annotated[
    str | None,
    Option(metavar="DEVICE", help="Device, such as cuda. [default: a GPU if there is one]"),
]
Dtype = Annotated[
    str | None,
    Option(metavar="TYPE", help="Number type of the weights: float32, bfloat16 or float16."),
]
Revision = Annotated[
    str | None, Option(metavar="REVISION", help="Branch, tag or commit on the Hub.")
]
Trust = Annotated[bool, Option("--trust-remote-code", help="Run code from the model's repository.")]
Task = Annotated[
    Literal["query", "document"] | None,
    Option(help="Encode as queries or documents, if these differ."),
]
TextColumn = Annotated[
    str | None, Option(metavar="NAME", help="Column of the text. [default: text, content, …]")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
