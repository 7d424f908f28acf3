"""The commands that find out what suits a base model and texts: tune, compose, attention."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..modules import NoSink
from . import places
from .app import app, command
from .evaluate import Items
from .fields import Fields, options_of
from .options import BASE, CORPUS_FILES, PROMPT, REVISION, SEED, Output, Running, arg, choice, opt

_PANEL = "Choose and look inside"
if TYPE_CHECKING:
    NoSinkFields = Fields
else:
    NoSinkFields = options_of("The conversion of a base model", [("", NoSink)], ("setting", "k", "k0", "m"))


@dataclass
class Composing:
    """Of the preset compose."""

    panel: ClassVar[str] = "The preset compose"
    minutes: float | None = opt(None, "Draw as many arms as fit into M minutes.", "M")
    tokens: int | None = opt(None, "Draw as many arms as fit into N positions run.", "N", min=1)
    speed: float = opt(0.5, "Of the base's work that a fast method may take; the best such is reported too.", "SHARE")
    space: str | None = opt(None, "A YAML file of what is searched (docs/how-to/compose.md).", "FILE")

    def __post_init__(self) -> None:
        for name in ("minutes", "speed"):
            _check_number(f"--{name}", getattr(self, name))


def _check_number(flag: str, number: float | None) -> None:
    if number is not None and not 0 < number < float("inf"):
        raise ValueError(f"{flag} {number}: give a number above 0.")


@dataclass
class Choosing:
    """Of the preset nosink."""

    panel: ClassVar[str] = "The preset nosink"
    everything: bool = opt(False, "Try every setting and k, as in the paper's figures.")
    pooling: str = choice("mean", ("mean", "last"), "The sentence vector.")
    m: int = opt(1, "Sink tokens that are hidden.", "N", min=1)


@command(app, _PANEL, interrupted="every arm that was finished is kept in OUT; the same command goes on")
def tune(
    *,
    base: str = arg("BASE", "A base model: mini (it comes with st_reba), a folder, or a Hub id."),
    file: str = arg("TEXTS", f"Texts like those to be embedded, without labels: {CORPUS_FILES}."),
    to: Path = arg("OUT", "The folder of the run: recipe, model, report, table, figure."),
    run: Running,
    out: Output,
    like: str = choice("pairs", ("pairs", "search", "topics"), "What the vectors are for."),
    budget: str = choice(
        "balanced",
        ("speed", "balanced", "quality"),
        "What a method may cost: half of a pass of the text through BASE, one, or any number.",
    ),
    labels: str | None = opt(None, "Labelled items that choose instead (as st-reba compose reads them).", "FILE"),
    sample: int = opt(1000, "Draw so many of the texts.", "N", min=50, max=20_000),
    quick: bool = opt(False, "Search layers, poolings and a few filters alone."),
    space: str | None = opt(None, "A YAML file of what is searched (docs/how-to/compose.md).", "FILE"),
    minutes: float | None = opt(None, "Draw as many arms as fit into M minutes.", "M"),
    text_column: str | None = opt(None, "Column or key of the text; without: text, content, body, …", "NAME"),
    max_seq_length: int | None = opt(None, "Positions of a text.", "N", min=1),
    revision: str | None = REVISION,
    seed: int = SEED,
) -> None:
    """Find how a base model becomes the best embedder for your texts, without any label, and save it.

    Each text is shown in two views, and a recipe is good if the vectors of the two find each other among those of all
    texts. Within the budget OUT/model is the cheapest that cannot be told from the best; OUT/report.md tells what it is
    worth, against each paper's method.

    Every step is kept: the same command goes on where it was stopped.

    Examples:
        st-reba tune mini texts.txt tuned --quick
        st-reba tune mini corpus.jsonl tuned_for_search --like search --budget quality --minutes 10
    """
    places.expect_base("BASE", base)
    for name, path in (("TEXTS", file), ("--labels", labels), ("--space", space)):
        if path is not None and not Path(path).is_dir():
            places.expect(name, path, "a file")
    if places.kind_of(to) not in (None, "an empty folder", "the folder of a search"):
        places.expect("OUT", to, "the folder of a search")
    _check_number("--minutes", minutes)
    from ..evaluation.methods import Base as Model
    from ..evaluation.space import read_space
    from ..evaluation.tune import MODEL
    from ..evaluation.tune import tune as search

    report = search(
        Model(base, revision, None, run.dtype, run.device, run.trust_remote_code),
        file,
        to,
        like=like,  # type: ignore[arg-type]
        budget=budget,  # type: ignore[arg-type]
        labels=labels,
        sample=sample,
        quick=quick,
        space=None if space is None else read_space(space),
        minutes=minutes,
        text_column=text_column,
        max_seq_length=max_seq_length,
        seed=seed,
        show_progress_bar=out.bar,
        say=out.say,
        command=shlex.join(["st-reba", *sys.argv[1:]]),
    )
    if out.json:
        out.answer("", {**report.to_json(), "model": str(to / MODEL)}, indent=2)


@command(app, _PANEL, interrupted="every arm that was finished is kept in OUT; the same command goes on")
def compose(
    *,
    base: str = BASE,
    file: str = arg("FILE", "The labelled items."),
    to: Path = arg("OUT", "The folder of the run: recipe, report, table, figure."),
    items: Items,
    composing: Composing,
    choosing: Choosing,
    run: Running,
    out: Output,
    preset: str = choice(
        "compose",
        ("compose", "nosink"),
        "compose: templates, copies, layer plans, layers, poolings and filters together; nosink: that paper's choice "
        "of k and k0.",
    ),
    kind: str | None = opt(None, "Of the items: STS, Reranking, …; without: as the columns tell.", "KIND"),
    test: str | None = opt(None, "Hold out this file, and nothing of FILE.", "FILE"),
    validation: float = opt(0.5, "The share of FILE that chooses.", "SHARE", min=0, max=1),
    max_seq_length: int | None = opt(None, "Positions of a text.", "N", min=1),
    revision: str | None = REVISION,
) -> None:
    """Find how a base model becomes the best embedder for your labelled items, and write the recipe.

    FILE holds pairs with scores or labels, triples, texts with classes, or a ranking (.csv, .tsv, .jsonl, .parquet), or
    id||text||text||score lines; with --preset nosink also words with tags (CoNLL columns). Half of it chooses, the
    other half tells what the choice is worth.

    Every step is kept: the same command goes on where it was stopped. st-reba build OUT/recipe.yaml my_model builds
    what was found.

    Examples:
        st-reba compose mini pairs.tsv composed --minutes 10
        st-reba compose mini pairs.tsv tuned --preset nosink
        st-reba compose mini clicks.jsonl ranked --columns document=title
    """
    places.expect_base("BASE", base)
    for name, path in (("FILE", file), ("--test", test), ("--train", items.train), ("--space", composing.space)):
        if path is not None and not Path(path).is_dir():
            places.expect(name, path, "a file")
    if places.kind_of(to) not in (None, "an empty folder", "the folder of a search"):
        places.expect("OUT", to, "the folder of a search")
    from ..evaluation.data import read_task

    task = read_task(file, kind, train=items.train, **items.reading)
    other = None if test is None else read_task(test, task.kind, **items.reading)
    from ..evaluation.methods import Base as Model
    from ..evaluation.search import compose as search
    from ..evaluation.space import read_space

    report = search(
        Model(base, revision, None, run.dtype, run.device, run.trust_remote_code),
        task,
        to,
        preset,
        space=None if composing.space is None else read_space(composing.space),
        test=other,
        validation=validation,
        max_seq_length=max_seq_length,
        seed=items.seed,
        show_progress_bar=out.bar,
        say=out.say,
        command=shlex.join(["st-reba", *sys.argv[1:]]),
        minutes=composing.minutes,
        tokens=composing.tokens,
        speed=composing.speed,
        **asdict(choosing),
    )
    if out.json:
        out.answer("", report.to_json(), indent=2)


@command(app, _PANEL)
def attention(
    *,
    model: str = arg("MODEL", "A saved model; or a base model, which --setting converts."),
    text: str = arg("TEXT", "The text."),
    fields: NoSinkFields,
    run: Running,
    out: Output,
    to: Path = opt(Path("attention"), "The folder to write.", "FOLDER", "--out"),
    prompt: str | None = PROMPT,
    scale: str = choice("log", ("log", "linear"), "Of the colours."),
) -> None:
    """Draw a text's attention, layer by layer, and measure the share that falls on the first token: the sink.

    Examples:
        st-reba attention my_model 他在银行取钱 --out maps
        st-reba attention mini 'The cat sat on the mat.' --setting mask0-bidir --k all
    """
    given = fields.given
    NoSink(**given)
    places.expect_base("MODEL", model)
    from ..evaluation.attention import MAX_NAMED, attention_maps, code, markdown_table, write_attention

    m = given.get("m", 1)
    loaded = _converted(model, given, run)
    maps = attention_maps(loaded, text, prompt=prompt)
    rows = write_attention(maps, to, m=m, scale=scale)  # type: ignore[arg-type]
    plan = loaded[0].stack
    parts = [*([] if plan is None else [str(plan)]), markdown_table(rows, m)]
    if len(maps.tokens) <= MAX_NAMED:
        parts.append(f"Tokens: {', '.join(f'{place} {code(token)}' for place, token in enumerate(maps.tokens))}")
    files = f"{to / 'attention.png'}, {to / 'attention.csv'}"
    about = {"tokens": maps.tokens, "layers": [asdict(row) for row in rows]}
    out.answer("\n\n".join([*parts, files]), about, indent=2)


def _converted(model: str, fields: dict[str, Any], run: Running) -> Any:
    """The saved model, or the base model, converted."""
    from ..bases import EMBEDDED, is_repository
    from ..building import build
    from ..modules.decoder import DecoderTransformer

    if "setting" not in fields and model not in EMBEDDED and is_repository(model, {}):
        loaded: Any = run.load(model)
        if isinstance(loaded[0], DecoderTransformer):
            for name in ("k", "k0"):
                if name in fields:
                    raise ValueError(f"--{name} {fields[name]}: MODEL {model!r} is converted already. Drop it.")
            return loaded
    given = {"setting": "baseline", **fields}
    if not str(given["setting"]).lower().startswith("mask0"):
        # Where no layer hides a token, m only says how many are measured.
        given.pop("m", None)
    elif "m" not in given:
        given["m"] = 1
    if run.device is not None:
        given["device"] = run.device
    return build(model, "nosink", dtype=run.dtype, trust_remote_code=run.trust_remote_code, **given)
