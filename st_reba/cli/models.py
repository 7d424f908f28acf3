"""Commands for models: build, info, verify, push, zoo, onnx."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml
from typer import Argument, Option

from .. import progress
from ..poolings import describe_poolings
from .app import command, drop_unset, parse_pairs, silence_loading, to_json
from .options import AsJson, Base, Device, Dtype, Model, Out, Overwrite, Revision, Trust
from .streams import STARTING, announced_step, print_error

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from ..modules import RepeatTransformer

_INDEX_FILE = "index.sqlite"
_LOADING_OPTIONS = {"dtype", "device", "trust_remote_code"}
# Internal facts about an index, shown only with --json.
_HIDDEN_INDEX_FACTS = (
    "next_key",
    "next_number",
    "indexed_count",
    "first_pending_key",
    "change_id",
    "whitening_sha256",
)


MethodText = Annotated[
    str | None,
    Option(
        metavar="METHOD",
        help="prompteol, echo, reba, nosink or classical; the short form, such as "
        "echo:pooling=mean,layer=12; or auto, with --texts. [default: the recipe's, else "
        "prompteol:template=prompteol-search,read=attention]",
    ),
]
PoolingName = Annotated[str | None, Option(metavar="NAME", help=f"{describe_poolings()}.")]
CopyCount = Annotated[
    int | None, Option(metavar="N", help="Copies, for echo and reba. [default: 2]")
]
Templates = Annotated[
    list[str] | None,
    Option(metavar="TEXT", help="Text with {text} slots, or a name. Repeat it for an ensemble."),
]
PromptPairs = Annotated[
    list[str] | None, Option(metavar="NAME=TEXT", help="Prompt to save. Repeatable.")
]
OptionPairs = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other option: read=attention, layer=12, gguf_file=… Repeatable.",
    ),
]
TextsPath = Annotated[
    Path | None,
    Option("--texts", metavar="PATH", help="Texts for --method auto: a file or folder."),
]
Quantization = Annotated[str | None, Option(metavar="TYPE", help="nf4 or int8, by bitsandbytes.")]
CardLicense = Annotated[
    str | None,
    Option(
        "--license",
        metavar="ID",
        help="Licence for the card, as the Hub spells it. [default: the base's]",
    ),
]


@command
def build(
    base: Base,
    out: Out,
    method: MethodText = None,
    pooling: PoolingName = None,
    repeats: CopyCount = None,
    template: Templates = None,
    prompt: PromptPairs = None,
    option_pairs: OptionPairs = None,
    texts_path: TextsPath = None,
    quantization: Quantization = None,
    card_license: CardLicense = None,
    dtype: Dtype = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Turn a base model into a text embedder, without training, and save it.

    Examples: st-reba build mini my_model --method prompteol:template=reverseol-says,read=attention;
    st-reba build mini my_model --method echo --pooling mean
    """
    with progress.step(STARTING):
        from .. import build as build_model
        from ..corpus.source import read_texts
        from ..hub.save import check_free, save
        from ..methods import read_value
        from ..recipe import find_recipe

    options = drop_unset(
        pooling=pooling,
        repeats=repeats,
        template=template[0] if template and len(template) == 1 else template,
        prompts=parse_pairs(prompt, "--prompt"),
        texts=texts_path and read_texts(texts_path),
        quantization=quantization,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    for option_name, option_text in parse_pairs(option_pairs, "--set").items():
        options[option_name] = read_value(option_text)
    method = options.pop("method", method)
    recipe = find_recipe(base, options | drop_unset(method=method))
    card_facts: dict[str, Any] = {"license": card_license}
    # The recipe's facts hold only for its own method and options.
    if recipe is not None and method is None and options.keys() <= _LOADING_OPTIONS:
        card_facts.update(about=recipe.about, name=recipe.name)
    check_free(out, overwrite=overwrite)
    silence_loading()
    loading_step = f"Loading {base} and building a model from it"
    with announced_step(loading_step, is_announced=not as_json):
        model = build_model(base, method, **options)
    saving_step = f"Saving {out}: weights, code, golden vectors and a card"
    with announced_step(saving_step, is_announced=not as_json):
        save(model, out, overwrite=overwrite, **card_facts)
    _print_facts(describe_model(str(out), model), as_json)
    if not as_json:
        model_word = quote(str(out))
        print_error(
            f"Next: st-reba index TEXTS my_index --model {model_word}    (TEXTS: a file or folder)"
        )


@command
def info(
    model: Annotated[
        str, Argument(metavar="MODEL", help="Saved model, Hub id, index, recipe.yaml or zoo:NAME.")
    ],
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Describe a model, a recipe or an index: base, method, layers, masks, sizes."""
    _refuse_useless_revision(model, revision)
    _print_facts(_facts_of(model, revision, trust_remote_code, as_json), as_json)


def _facts_of(
    model: str, revision: str | None, trust_remote_code: bool, as_json: bool
) -> dict[str, Any]:
    from ..recipe import read_recipe, zoo_recipe
    from ..safety import load

    if model.startswith("zoo:"):
        return zoo_recipe(model.removeprefix("zoo:")).to_dict()
    if model.endswith((".yaml", ".yml")):
        return read_recipe(model).to_dict()
    if _is_index(model):
        from ..index import Index

        index_facts = Index.open(model).info()
        if not as_json:
            for name in _HIDDEN_INDEX_FACTS:
                index_facts.pop(name, None)
        return index_facts
    silence_loading()
    # sentence-transformers warns that 16 bits are slow on a CPU, but nothing is encoded here.
    logging.getLogger("sentence_transformers.base.model").setLevel(logging.ERROR)
    loaded_model = load(
        model, device="cpu", dtype="auto", revision=revision, trust_remote_code=trust_remote_code
    )
    return describe_model(model, loaded_model)


@command
def verify(
    model: Annotated[
        str, Argument(metavar="MODEL", help="Saved model: a folder or Hub id; or an index.")
    ],
    device: Device = None,
    dtype: Dtype = None,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
) -> int:
    """Check a model against its golden vectors and the installed st_reba's code, or an index against its checksums.

    The exit status is 1 if they differ.
    """
    _refuse_useless_revision(model, revision)
    if _is_index(model):
        from ..index import Index

        with progress.step(f"Checking {model}"):
            index_facts = Index.open(model).verify()
        _print_facts(index_facts, as_json)
        return 0
    with progress.step(f"Verifying {model}"):
        from ..hub import verify as verify_model

        silence_loading()
        report = verify_model(
            model,
            device=device,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            report_step=None if as_json else print_error,
        )
    print(to_json(report.to_dict(), indent=1) if as_json else report)
    return 0 if report.ok else 1


@command
def push(
    folder: Annotated[
        Path, Argument(metavar="FOLDER", help="A folder that build, tune or onnx wrote.")
    ],
    repo_id: Annotated[
        str, Argument(metavar="ORG/NAME", help="Repository on the Hub; created if it is missing.")
    ],
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    revision: Annotated[
        str | None, Option(metavar="BRANCH", help="Branch to write to. [default: main]")
    ] = None,
    create_pr: Annotated[
        bool, Option("--create-pr", help="Open a pull request instead of writing.")
    ] = False,
    message: Annotated[str | None, Option(metavar="TEXT", help="Commit message.")] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Verify, list the files, and send nothing.")
    ] = False,
    trust_remote_code: Trust = False,
) -> None:
    """Verify a model, and publish it on the Hub.

    It uses the token of hf auth login, or HF_TOKEN.
    """
    from ..hub import push as push_model

    silence_loading()
    with progress.step(f"Verifying and publishing {folder}"):
        push_model(
            folder,
            repo_id,
            private=private,
            revision=revision,
            create_pr=create_pr,
            message=message,
            dry_run=dry_run,
            trust_remote_code=trust_remote_code,
        )


@command
def zoo(as_json: AsJson = False) -> None:
    """List the models of the zoo. st-reba info zoo:NAME shows a recipe, st-reba build zoo:NAME OUT builds its model."""
    from ..recipe import zoo as zoo_names
    from ..recipe import zoo_recipe

    recipes = list(map(zoo_recipe, zoo_names()))
    if as_json:
        typer.echo(
            to_json([{"name": recipe.name} | recipe.to_dict() for recipe in recipes], indent=1)
        )
        return
    rows: list[tuple[str, ...]] = [("NAME", "BASE", "SIZE", "LICENCE", "STATUS", "METHOD")]
    for recipe in recipes:
        size = str(recipe.about.get("parameters", "-"))
        licence = str(recipe.about.get("licence", "-"))
        rows.append((recipe.name, recipe.base, size, licence, recipe.status, recipe.short_form))
    column_widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    for row in rows:
        print("".join(map(str.ljust, row, column_widths)).rstrip())


@command
def onnx(
    model: Model,
    out: Out,
    task: Annotated[
        Literal["query", "document", "similarity"] | None,
        Option(
            help="Export what embeds queries, documents, or (similarity) all else, if these differ."
        ),
    ] = None,
    quantize: Annotated[
        str | None, Option(metavar="TYPE", help="int8: add a graph in 8 bits, and measure it.")
    ] = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Export a saved model as one ONNX graph, which needs neither torch nor st_reba."""
    from ..hub.save import check_free
    from ..onnx import export
    from ..safety import load

    check_free(out, overwrite=overwrite, is_export=True)
    silence_loading()
    with progress.step(f"Exporting {model}"):
        loaded_model = load(
            model, device="cpu", dtype="float32", trust_remote_code=trust_remote_code
        )
        report = export(loaded_model, out, task=task, quantize=quantize, overwrite=overwrite)
    _print_facts(report, as_json)


def _is_index(path: str) -> bool:
    return Path(path, _INDEX_FILE).is_file()


def _refuse_useless_revision(model: str, revision: str | None) -> None:
    if revision is not None and (model.startswith("zoo:") or Path(model).exists()):
        raise ValueError(
            f"--revision {revision}: {model} is not a repository on the Hub, and has no revisions. Drop it."
        )


def describe_model(name: str, model: SentenceTransformer) -> dict[str, Any]:
    """What ``st-reba info`` prints of a model."""
    from ..hub.card_method import have_one_wording, written_templates
    from ..methods import method_of
    from ..modules import RepeatTransformer

    transformer = model[0]
    method = method_of(model)
    facts: dict[str, Any] = {"model": name, "method": str(method) if method else None}
    if isinstance(transformer, RepeatTransformer):
        facts["base"] = transformer.base_model
        facts["revision"] = transformer.base_revision
        facts["layers"] = transformer.depth
        facts["masks"] = transformer.layer_masks or None
        facts["copies"] = transformer.copies
        templates = written_templates(transformer)
        if have_one_wording(templates):
            facts["template"] = templates["document"]
        else:
            facts["templates"] = templates
        is_shared = transformer.can_share()
        facts["prompt computed"] = "once for all texts" if is_shared else "with every text"
        facts["longest text, in tokens"] = _longest_texts(transformer)
    facts["dimensions"] = model.get_embedding_dimension()
    facts["modules"] = [type(module).__name__ for module in model]
    facts["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    facts["prompts"] = model.prompts
    return facts


def _longest_texts(transformer: RepeatTransformer) -> int | None | dict[str, int | None]:
    """Most tokens of a text that are read; by task, where its template leaves another number."""
    longest_by_task: dict[str, int | None] = {}
    for task in transformer.templates[0]:
        fields = dict.fromkeys(transformer.fields(task), "-")
        longest_by_task[task] = transformer.budget(task=task, **fields)
    if len(set(longest_by_task.values())) == 1:
        return longest_by_task["document"]
    return longest_by_task


def _print_facts(facts: Mapping[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(facts, indent=1))
        return
    known_facts = {name: value for name, value in facts.items() if value is not None}
    text = yaml.safe_dump(
        json.loads(to_json(known_facts)),
        allow_unicode=True,
        default_flow_style=None,
        sort_keys=False,
        width=1000,
    )
    typer.echo(text.rstrip())
