"""Options and arguments that several commands have."""

from __future__ import annotations

from collections.abc import Mapping
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
IndexFolder = Annotated[Path, Argument(metavar="INDEX", help="Folder of the index.")]
MovedModel = Annotated[
    str | None, Option(metavar="MODEL", help="Saved model, if it is no longer where it was.")
]
TextEncoding = Annotated[
    str | None,
    Option(
        "--encoding", metavar="NAME", help="Encoding of text files and of stdin. [default: UTF-8]"
    ),
]
WithoutTokens = Annotated[
    bool, Option("--no-tokens", help="Leave tokens out of whitened vectors, which saves space.")
]


def refuse_options(output_name: str, refused_options: Mapping[str, object]) -> None:
    """Refuse options that were given, by name and value, because they do not go with an output."""
    for option, value in refused_options.items():
        if value:
            given = option if value is True else f"{option} {value}"
            raise ValueError(f"{given} does not go with {output_name}")
