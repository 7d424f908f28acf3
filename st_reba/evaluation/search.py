"""Find which stages go best together on a base model, or which of NoSink's layer settings does, by labelled items."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformer
from tqdm.auto import tqdm

from .. import build
from ..files import remove_leftovers, sync, whole_file
from ..lock import LOCK_FILE, writers_lock
from ..modules import LayerPlan, NoSink
from ..modules.layout import Layout
from ..modules.plan import Stack
from ..optional import required
from ..selfcheck import check_plan
from .crossfit import Fold, Result, Scored, folds_of, score_reads
from .data import Task, read_task, shuffled
from .heldout import Parts, Row, compared, parts_of, score_heldout
from .items import Items
from .methods import Base
from .passes import Costs, costs_of, encode_arm
from .results import package_versions
from .search_report import Report, write_report
from .space import NO_FILTER, PAPERS, Arm, Pooled, Read, Space, Trial, nosink_arms, setting, write_space

RUN_FILE, TRIALS_FILE, SPACE_FILE, HELDOUT = "run.json", "trials.jsonl", "space.yaml", "heldout"
Source = Task | str | os.PathLike[str]
Say = Callable[[str], object]

# The share of the base's work that a fast method may take.
SPEED = 0.5
# Of the arms of one rung a third goes on, on three times the items.
RATE = 3
MOST_RUNGS = 3
# Items below which a rung would choose by chance.
FEWEST = 100
# Readings of an arm that are tried behind every filter, from the first rung to the last.
LOOKED_AT = (6, 8, 12)
# Digits of a score that are kept: what is chosen must not depend on whether a run was stopped.
_DIGITS = 6
# Arms that every rung keeps, whatever the budget: the best of each single paper, of the fast, and of all.
_LEAST = len(PAPERS) + 2
# What figures 2 and 4 of NoSink vary over k, and what figure 6 adds with a k0; EXTEND only falls, and ends there.
_ARCHITECTURES = tuple(
    f"{name}-{kind}" for name in ("inplace", "inter", "extra", "extend") for kind in ("bidir", "back")
)
_MASKS = ("mask0-bidir", "mask0-for", "mask0-all")
_COMBINED = ("mask0-mid", "mask0-last", "mask0-1", "mask0-2", "mask0-3")
_MOST_EXTENDED = 5


def compose(
    base: str | os.PathLike[str],
    task: Source,
    out: str | os.PathLike[str],
    *,
    preset: Literal["compose", "nosink"] = "compose",
    space: Space | None = None,
    test: Source | None = None,
    validation: float = 0.5,
    minutes: float | None = None,
    tokens: int | None = None,
    speed: float = SPEED,
    everything: bool = False,
    pooling: Literal["mean", "last"] = "mean",
    m: int = 1,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    max_seq_length: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    show_progress_bar: bool | None = None,
    say: Say = print,
    command: str = "",
) -> Report:
    """Search how a base model becomes the best embedder for a task, and write the recipe.

    ``"compose"``: templates, repetition, layer plans, layers, poolings and post-filters together. An arm is an input
    and a plan; one forward pass of it gives every layer and pooling. All arms run on some of the validation items, the
    best third on three times as many, and the last on all: the best of all, the best of the fast, and the best of each
    single paper's method. ``"nosink"``: the paper's own choice. In turn INPLACE-BIDIR for k = 0 … L, whose best k is
    k_b; MASK0-BIDIR for k = 1 … L, whose best k is k_m; MASK0&BIDIR with k = k_b and k0 = k_m (LAST) or half of k_m
    (MID). Among equals the smaller k is chosen.

    Only the methods that are reported see held-out items, at the end. Every finished arm is on disk, so that the same
    call goes on where another was stopped.

    Args:
        base: As for :func:`st_reba.build`.
        task: The items, or a file for :func:`read_task`.
        out: The folder of the run; docs/COMPOSING.md names its files.
        preset: ``"compose"`` or ``"nosink"``.
        space: What ``"compose"`` searches; None: the default of :class:`Space`.
        test: Other items, or their file, which report; None: what ``validation`` leaves of the task's own.
        validation: Share of the task's items that choose.
        minutes: Draw as many arms as fit into so many minutes of search, by the time that the single papers' methods
            take on the first items. The held-out scores come on top.
        tokens: Draw as many arms as fit into so many forward tokens: positions, padding excluded. Both: whichever is
            less. Arms of single papers' methods always run, and the best of each is kept.
        speed: The share of the unconverted base's work (positions times layers, the text once) that a method may take
            to count as fast.
        everything: Of ``"nosink"``: run the grids of the paper's figures 2, 4 and 6 too, and choose among all.
        pooling: Of ``"nosink"``: ``"mean"`` or ``"last"``.
        m: Of ``"nosink"``: sink tokens that its layers hide.
        dtype: Of the weights, as for ``build``.
        device: Where to run.
        max_seq_length: As for ``build``.
        revision: Hub revision of the base.
        trust_remote_code: Allow the base's own modelling code.
        seed: Of the parts, of the draws of arms and items.
        show_progress_bar: Show one a phase; None: on a terminal.
        say: Gets a line for each step, and the report at the end.
        command: What runs it again, for the report.

    Raises:
        ImportError: The extra ``evaluation`` is not installed.
        FileExistsError: ``out`` holds something else.
        BlockingIOError: Another process is writing there.
        ValueError: ``out`` holds another run (what differs is named), an option does not fit, or nothing can be scored.

    Source:
        The stages: ReBA, Echo, NoSink, All-but-the-Top; successive halving: Jamieson and Talwalkar (2016). NoSink,
        sections 3.2 to 3.6 and 4.1 (k and k0 by the validation set).

    Example:
        >>> with open("pairs.csv", "w", encoding="utf-8") as file:
        ...     _ = file.write("text1,text2,score\\n")
        ...     _ = file.writelines(f"text {n},text {n % 7},{n % 5}\\n" for n in range(200))
        >>> small = Space(kinds=(), pooled=("mean",))
        >>> report = compose("mini", "pairs.csv", "composed", space=small, say=lambda line: None)  # doctest: +SKIP
        >>> report.recipe["pooling"]  # doctest: +SKIP
        'mean'
    """
    _check_options(preset, locals())
    named = read_task(task, seed=seed) if isinstance(task, (str, os.PathLike)) else task
    other = read_task(test, named.kind, seed=seed) if isinstance(test, (str, os.PathLike)) else test
    _check_kind(preset, named.kind)
    parts = parts_of(named, other, validation, seed)
    # What is missing is told before hours of work, not after.
    for module in ("matplotlib.figure", "pandas", "scipy.stats", "sklearn.linear_model"):
        required(module, "evaluation")
    if parts.validation.kind == "NER":
        required("seqeval.metrics", "evaluation")
    searched = space or Space()
    loading: dict[str, Any] = {"device": device, "dtype": dtype, "max_seq_length": max_seq_length}
    loading |= {"revision": revision, "trust_remote_code": trust_remote_code}
    own: dict[str, Any] = {"minutes": minutes, "tokens": tokens, "speed": speed, "space": searched.to_json()}
    named_dtype = None if dtype is None else str(dtype).removeprefix("torch.")
    running = Base(os.fspath(base), revision, None, named_dtype, device, trust_remote_code)
    record = {
        "base": {"name": os.fspath(base), **running.identity},
        "task": {"name": named.name, "kind": named.kind, "fingerprint": parts.fingerprint},
        "preset": preset,
        "options": {"max_seq_length": max_seq_length, "seed": seed}
        | (own if preset == "compose" else {"pooling": pooling, "m": m}),
        "versions": package_versions(),
    }
    loaded: list[SentenceTransformer] = []

    def model() -> SentenceTransformer:
        if not loaded:
            stages = [LayerPlan()] if preset == "nosink" else []
            loaded.append(build(base, "classical", pooling=pooling, stages=stages, **loading))
            transformer: Any = loaded[0][0]
            # Zeros are found when the vectors are scored: an arm that breaks the model ends alone.
            transformer.zeros = True
        return loaded[0]

    with Ledger.opened(out, record) as ledger:
        say(f"Task: {parts}")
        if ledger.results:
            say(f"{ledger.folder}: going on after {len(ledger.results)} arms")
        disable = None if show_progress_bar is None else not show_progress_bar
        how: dict[str, Any] = {"preset": preset, "seed": seed, "speed": speed, "pooling": pooling}
        search = Search(ledger, model, parts, searched, **how, disable=disable, say=say)
        say(f"Base: {os.fspath(base)}, {search.depth} layers")
        try:
            if preset == "nosink":
                found = chosen_nosink(search, m, everything)
            else:
                if space is not None:
                    with whole_file(ledger.folder / SPACE_FILE) as stream:
                        stream.write(write_space(space).encode())
                found = search.halved(minutes, tokens)
            say(f"Held-out: {len(found.chosen)} methods")
            # What is reported is built anew, and two models may not fit side by side.
            depth, costs = search.depth, search.costs
            del search
            loaded.clear()
            told = score_heldout(
                *(found.chosen, parts, base, loading, depth, ledger.folder / HELDOUT), seed=seed, disable=disable
            )
        except KeyboardInterrupt:
            say(f"{ledger.folder}: stopped after {len(ledger.results)} arms; the same command goes on from there")
            raise
        scores, intervals, apart = compared(told, parts.heldout, found.against)
        rows = [
            Row(name, trial, costs.of(trial), costs.tokens(trial.arm), score, scores[name], intervals[name])
            for name, (trial, score) in found.chosen.items()
        ]
        report = Report(
            base=os.fspath(base),
            task=str(parts),
            metric=parts.heldout.main,
            depth=depth,
            rows=tuple(rows),
            against=found.against,
            differences=tuple(apart),
            recipes=found.recipes,
            results=tuple(found.results),
            costs=costs,
            options={name: loading[name] for name in ("max_seq_length", "revision") if loading[name] is not None},
            command=command,
            folder=ledger.folder,
        )
        write_report(report, ledger.folder / HELDOUT)
    say(str(report))
    return report


class Ledger:
    """The folder of a run: ``run.json`` says what is run, ``trials.jsonl`` has a line for each finished arm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[tuple[Arm, int], Result] = {}

    @classmethod
    @contextmanager
    def opened(cls, out: str | os.PathLike[str], about: Mapping[str, Any]) -> Iterator[Ledger]:
        """Open a folder, new or of the same run, and keep other writers out.

        Args:
            out: The folder.
            about: What the run depends on; JSON values.

        Raises:
            FileExistsError: It holds something else.
            BlockingIOError: Another process is writing there.
            ValueError: It holds another run (what differs is named), or a line that cannot be read.

        Example:
            >>> with Ledger.opened("run", {"base": "mini"}) as ledger:
            ...     ledger.add(Result(Arm(), 0, 50, 900, 1.5, ()))
            >>> with Ledger.opened("run", {"base": "mini"}) as ledger:
            ...     [result.items for result in ledger.results.values()]
            [50]
            >>> with Ledger.opened("run", {"base": "other"}) as ledger:
            ...     pass
            Traceback (most recent call last):
            ...
            ValueError: run: another run is there: base was 'mini', now 'other'. Give another folder.
        """
        folder = Path(out)
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder}: a file is there; name a folder.")
        there = {path.name for path in folder.iterdir()} - {LOCK_FILE} if folder.is_dir() else set()
        if there and RUN_FILE not in there:
            raise FileExistsError(f"{folder}: not the folder of a run (no {RUN_FILE}); give another.")
        folder.mkdir(parents=True, exist_ok=True)
        with writers_lock(folder):
            remove_leftovers(folder)
            for left in folder.glob(".vectors-*"):
                shutil.rmtree(left)
            ledger = cls(folder)
            ledger._check(about)
            ledger._read()
            yield ledger

    def add(self, result: Result) -> None:
        """Keep a result; it is on disk when this returns."""
        with (self.folder / TRIALS_FILE).open("ab") as stream:
            stream.write(json.dumps(result.to_json(), allow_nan=False).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.results[result.arm, result.rung] = result

    def _check(self, about: Mapping[str, Any]) -> None:
        file, trials = self.folder / RUN_FILE, self.folder / TRIALS_FILE
        # A run that failed before its first arm, as one whose base is misspelt, leaves nothing to lose.
        if file.is_file() and trials.exists() and trials.stat().st_size:
            try:
                before = _flat(json.loads(file.read_text(encoding="utf-8")))
            except (ValueError, AttributeError):
                raise ValueError(f"{file}: not readable as JSON; give another folder, or remove this one.") from None
            now = _flat(json.loads(json.dumps(about)))
            differing = [
                f"{name} was {before.get(name)!r:.200}, now {now.get(name)!r:.200}"
                for name in sorted(before.keys() | now.keys())
                if before.get(name) != now.get(name)
            ]
            if differing:
                raise ValueError(f"{self.folder}: another run is there: {'; '.join(differing)}. Give another folder.")
        with whole_file(file) as stream:
            stream.write(json.dumps(about, ensure_ascii=False, indent=2).encode() + b"\n")
        sync(self.folder)

    def _read(self) -> None:
        path = self.folder / TRIALS_FILE
        data = path.read_bytes() if path.exists() else b""
        # A kill can leave a part of the last line; that arm runs again.
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                result = Result.of(json.loads(line))
            except (ValueError, TypeError, KeyError, IndexError):
                raise ValueError(f"{path}, line {number}: no result; remove it, and its arm runs again.") from None
            self.results[result.arm, result.rung] = result


@dataclass(frozen=True)
class Found:
    """What a search ends with.

    Args:
        results: All of it.
        chosen: The methods that are reported and their validation scores, by name.
        against: The one that all are compared with.
        recipes: The recipe's file, by the name of a method that has one.
    """

    results: Sequence[Result]
    chosen: dict[str, tuple[Trial, float]]
    against: str
    recipes: dict[str, str]


class Search:
    """Runs arms on ever more of the validation items, and keeps what they score.

    Args:
        ledger: Where results are kept; those that are there are not made again.
        model: The unconverted model, built when it is asked for first.
        parts: The items, of which the held-out ones are not looked at.
        space: What is read and filtered.
        preset: See :func:`compose`.
        seed: Of the items' order, and of the draw of arms.
        speed: The share of the base's work that a fast method may take.
        pooling: Of NoSink's settings.
        disable: Show no bars; None: on a terminal.
        say: Gets a line a step.
    """

    def __init__(
        self,
        ledger: Ledger,
        model: Callable[[], SentenceTransformer],
        parts: Parts,
        space: Space,
        *,
        preset: str = "compose",
        seed: int = 0,
        speed: float = SPEED,
        pooling: Pooled = "mean",
        disable: bool | None = None,
        say: Say = print,
    ) -> None:
        self.ledger, self.space, self.say = ledger, space, say
        self._model, self._speed, self._seed, self._disable = model, speed, seed, disable
        count, choosing = len(parts.validation), parts.choosing
        order = shuffled(range(count), seed, "items")
        self.sizes = rung_sizes(count)
        # The items of a rung, those of the rung before among them, and behind them what is kept apart to learn from.
        learnt = range(count, len(choosing))
        self.items: list[Items] = [choosing.subset([*sorted(order[:size]), *learnt]) for size in self.sizes]
        # Where nothing is learnt or fitted there is nothing to keep apart.
        alone = preset == "nosink" and (bool(learnt) or not choosing.learns)
        self.folds: list[list[Fold]] = [
            folds_of(items, size, 1 if alone else 2) for items, size in zip(self.items, self.sizes, strict=True)
        ]
        self.depth = int(self._transformer().depth)
        self._read = Read(self.depth, self.depth, True, pooling)
        self.costs: Costs = costs_of(self._transformer(), [], choosing.texts)

    def halved(self, minutes: float | None, tokens: float | None) -> Found:
        """Successive halving of the space's arms.

        Args:
            minutes: That it may take, by the pace of the papers' methods; None: any time.
            tokens: Positions that may run; None: any number.

        Raises:
            ValueError: No arm could be scored.
        """
        arms = self._fitting(self.space.arms(self.depth))
        self.costs = costs_of(self._transformer(), arms, self.items[-1].texts)
        # Their time says what the others will take.
        papers = [each for each in self.rung(self.always(arms), 0, "Papers") if each.scored]
        if not papers:
            raise ValueError("no arm of a single paper's method could be run.")
        # A clock may stand still over a tiny model.
        pace = sum(each.tokens for each in papers) / max(1e-3, sum(each.seconds for each in papers))
        if minutes is not None:
            tokens = min(60 * minutes * pace, float("inf") if tokens is None else tokens)
        drawn = arms if tokens is None else self.drawn(arms, tokens)
        whole = sum(self.cost(arm, rung) * RATE**-rung for rung in range(len(self.sizes)) for arm in drawn)
        left = min(whole, tokens or whole) - sum(each.tokens for each in self.ledger.results.values())
        self.say(f"{len(drawn)} of {len(arms)} arms; {about(left / pace)}, held-out scores on top")
        made = self.rungs(drawn, tokens)
        chosen = reported(made, self.costs, self._speed)
        single = max((name for name in chosen if name in PAPERS), key=lambda name: chosen[name][1])
        recipes = {"composed": "recipe.yaml", "fast": "recipe-fast.yaml"}
        return Found(made, chosen, single, {name: file for name, file in recipes.items() if name in chosen})

    def always(self, arms: Sequence[Arm]) -> list[Arm]:
        """The arms that a budget does not leave out: those of single papers' methods."""
        return [
            arm
            for arm in arms
            if any(Trial(arm, read).paper(self.depth) != "composed" for read in self.space.reads(arm, self.depth))
        ]

    def drawn(self, arms: Sequence[Arm], tokens: float) -> list[Arm]:
        """As many arms as a budget allows on the first rung, drawn by the seed, in their order.

        Args:
            arms: All of them.
            tokens: Positions that the whole search may run.
        """
        chosen = set(self.always(arms))
        left = self._allowed(0, tokens, arms) - sum(self.cost(arm, 0) for arm in chosen)
        others = [arm for arm in arms if arm not in chosen]
        for index in shuffled(range(len(others)), self._seed, "arms"):
            left -= self.cost(others[index], 0)
            if left < 0:
                break
            chosen.add(others[index])
        return [arm for arm in arms if arm in chosen]

    def rungs(self, arms: Sequence[Arm], tokens: float | None = None) -> list[Result]:
        """All results, those of the last rung at the end.

        Args:
            arms: The arms of the first rung.
            tokens: Positions that may run in all. Arms of single papers' methods run on the first rung, and the best
                of each paper, of the fast and of all on every further one, also where that takes more.

        Raises:
            ValueError: No arm could be scored.
        """
        made: list[Result] = []
        left = list(arms)
        for rung, size in enumerate(self.sizes):
            found = self.rung(left, rung, f"Rung {rung + 1} of {len(self.sizes)}")
            if not any(result.scored for result in found):
                raise ValueError(f"no arm could be scored: {found[0].error}")
            made += found
            best = max(score for result in found for _, score in result.trials())
            self.say(f"Rung {rung + 1} of {len(self.sizes)}: {len(left)} arms on {size} items, best {best:.4f}")
            if rung + 1 < len(self.sizes):
                if tokens is not None:
                    tokens -= sum(self.cost(arm, rung) for arm in left)
                left = self.kept(found, -(-len(left) // RATE), rung + 1, tokens)
        return made

    def kept(self, results: Sequence[Result], count: int, rung: int, tokens: float | None = None) -> list[Arm]:
        """The arms that go on: the best, the best of the fast, and the best of each single paper.

        Args:
            results: A rung's.
            count: How many, about: half of them for the best of all, a quarter for the fast.
            rung: That they go on to.
            tokens: Positions that this rung and those after it may run; None: any number.

        Returns:
            The arms, those first that no budget leaves out.
        """
        every = _order(results, lambda trial: True)
        fast = _order(results, lambda trial: self.costs.of(trial) <= self._speed)
        papers = [_order(results, of_paper(paper, self.depth)) for paper in PAPERS]
        always = dict.fromkeys(arm for order in (every, fast, *papers) for arm in order[:1])
        kept = {**always, **dict.fromkeys([*every[: -(-count // 2)], *fast[: -(-count // 4)]])}
        for order in papers:
            kept.update(dict.fromkeys(order[: -(-count // (4 * len(PAPERS)))]))
        for arm in every:
            if len(kept) >= count:
                break
            kept[arm] = None
        if tokens is None:
            return list(kept)
        left = self._allowed(rung, tokens, list(kept)) - sum(self.cost(arm, rung) for arm in always)
        affordable = dict(always)
        for arm in kept:
            if arm not in always:
                left -= self.cost(arm, rung)
                if left < 0:
                    break
                affordable[arm] = None
        return list(affordable)

    def cost(self, arm: Arm, rung: int) -> int:
        """Positions of an arm on a rung."""
        return self.costs.total(arm, self.items[rung].texts)

    def rung(self, arms: Sequence[Arm], rung: int, title: str) -> list[Result]:
        """The results of arms on a rung's items."""
        there = self.ledger.results
        missing = [arm for arm in arms if (arm, rung) not in there]
        alike = {self._layers(arm): result for (arm, on), result in there.items() if on == rung}
        for arm in tqdm(missing, desc=title, unit="arm", disable=self._disable if missing else True):
            layers = self._layers(arm)
            # As MASK0-LAST with k = k0, which is MASK0-BIDIR.
            same = None if layers is None else alike.get(layers)
            result = self._made(arm, rung) if same is None else replace(same, arm=arm, tokens=0, seconds=0.0)
            alike[layers] = result
            self.ledger.add(result)
            if result.error is not None:
                self.say(f"{arm}: failed, {result.error}")
        return [there[arm, rung] for arm in arms]

    def _layers(self, arm: Arm) -> Stack | None:
        """The layers that one of NoSink's settings runs."""
        return None if arm.nosink is None else arm.nosink.plan.resolve(self.depth)

    def _fitting(self, arms: Sequence[Arm]) -> list[Arm]:
        """The arms whose input leaves room for a text; what is left out is told."""
        fits: dict[Layout, bool] = {}
        for arm in arms:
            if arm.layout not in fits:
                try:
                    fits[arm.layout] = bool(costs_of(self._transformer(), [arm], []))
                except ValueError as error:
                    fits[arm.layout] = False
                    self.say(f"Left out: {error}")
        return [arm for arm in arms if fits[arm.layout]]

    def _allowed(self, rung: int, tokens: float, arms: Sequence[Arm]) -> float:
        """What a rung may run: its share of what is left, but for what the rungs after it need at the least."""
        dearest = max(arms, key=self.costs.tokens)
        later = range(rung + 1, len(self.sizes))
        least = sum(min(_LEAST, len(arms)) * self.cost(dearest, number) for number in later)
        return min(tokens / (len(later) + 1), tokens - least)

    def _made(self, arm: Arm, rung: int) -> Result:
        start = time.perf_counter()
        tokens, scored, error = 0, list[Scored](), None
        try:
            tokens, scored = self._scored(arm, rung)
        except ValueError as failure:
            # Some backbones cannot run some plans; the others are not to wait for a person.
            error = str(failure)
        if not scored and error is None:
            error = "no reading gave vectors that are finite"
        rounded = tuple(replace(each, score=round(each.score, _DIGITS)) for each in scored)
        return Result(arm, rung, self.sizes[rung], tokens, round(time.perf_counter() - start, 3), rounded, error)

    def _scored(self, arm: Arm, rung: int) -> tuple[int, list[Scored]]:
        """The positions that ran, and what was read of them."""
        if arm.nosink is not None:
            # The model itself, as some of these plans run layers twice, and words have vectors of their own.
            model: Any = self._model()
            model[0].rebind([arm.nosink, *(stage for stage in model[0].stages if stage.order != NoSink.order)])
            check_plan(model[0])
            vectors = self.items[rung].vectors(model)
            score = sum(fold.score(vectors[fold.places]) for fold in self.folds[rung]) / len(self.folds[rung])
            return self.cost(arm, rung), [Scored(self._read, NO_FILTER, score)]
        reads = self.space.reads(arm, self.depth)
        with TemporaryDirectory(prefix=".vectors-", dir=self.ledger.folder, ignore_cleanup_errors=True) as folder:
            encoded = encode_arm(self._transformer(), arm, reads, self.items[rung].texts, folder)
            looked_at = LOOKED_AT[rung - len(self.sizes)]
            return encoded.tokens, score_reads(self.folds[rung], encoded, self.space.filters, looked_at=looked_at)

    def _transformer(self) -> Any:
        return self._model()[0]


def chosen_nosink(search: Search, m: int, everything: bool) -> Found:
    """The paper's own choice of k and k0, every setting on all validation items.

    Args:
        search: Runs the arms.
        m: Sink tokens that nosink layers hide.
        everything: Whether the grids of the paper's figures come on top.

    Raises:
        ValueError: The unconverted model cannot be scored, or no converted one.

    Source:
        NoSink, section 3.6 and finding 5; with ``everything`` sections 3.3, 3.5 and 3.6.
    """
    depth, say, made = search.depth, search.say, dict[Arm, Result]()
    numbers = range(1, depth + 1)

    def phase(title: str, arms: Sequence[Arm]) -> list[Result]:
        found = search.rung(arms, len(search.sizes) - 1, title)
        made.update({result.arm: result for result in found})
        return found

    def combined(name: str, every: Sequence[int], masked: int) -> None:
        """MASK0&BIDIR with every k that has room for its k0."""
        k0 = {"mask0-last": masked, "mask0-mid": max(1, masked // 2)}.get(name) or int(name.removeprefix("mask0-"))
        fitting = [k for k in every if k >= k0]
        if not fitting:
            say(f"{name.upper()} k={max(every)} k0={k0}: not tried, as k0 is more than k")
        phase(f"{name.upper()} k0={k0}", nosink_arms(name, fitting, m, masked))

    (baseline,) = phase("BASELINE", [Arm(nosink=NoSink())])
    if not baseline.scored:
        raise ValueError(f"the unconverted model cannot be scored: {baseline.error}")
    settings = len(_ARCHITECTURES + _MASKS + _COMBINED) if everything else 2
    say(f"{depth * settings} arms or fewer; {about(baseline.seconds * depth * settings)}, held-out scores on top")
    bidirectional = phase("INPLACE-BIDIR", nosink_arms("inplace-bidir", numbers))
    if _best(bidirectional) is None:
        raise ValueError(f"no converted model can be scored: {bidirectional[0].error}")
    k = _k(_best([baseline, *bidirectional]))
    say(f"INPLACE-BIDIR: best k = {k} of 0 to {depth}")
    best = _best(phase("MASK0-BIDIR", nosink_arms("mask0-bidir", numbers, m)))
    if best is None:
        say("MASK0&BIDIR: not tried, as no model of MASK0-BIDIR can be scored")
    else:
        say(f"MASK0-BIDIR: best k = {_k(best)} of 1 to {depth}")
        for name in _COMBINED[:2]:
            combined(name, [k], _k(best))
    if everything:
        for name in _ARCHITECTURES + _MASKS:
            most = _MOST_EXTENDED if name.startswith("extend") else depth
            phase(name.upper(), nosink_arms(name, range(1, most + 1), m))
        for name in _COMBINED if best is not None else _COMBINED[2:]:
            combined(name, numbers, _k(best))
    by_setting: dict[str, list[Result]] = {}
    for result in made.values():
        by_setting.setdefault(_nosink(result.arm).setting, []).append(result)
    tops = [top for results in by_setting.values() if (top := _best(results)) is not None]
    winner = _best(list(made.values())) or baseline
    chosen = {setting(_nosink(top.arm)): top.trials()[0] for top in tops}
    return Found(list(made.values()), chosen, "BASELINE", {setting(_nosink(winner.arm)): "recipe.yaml"})


def rung_sizes(items: int) -> list[int]:
    """Items of each rung: all at last, a third of that before, as long as enough are left to choose by.

    Example:
        >>> rung_sizes(1458), rung_sizes(400), rung_sizes(90)
        ([162, 486, 1458], [133, 400], [90])
    """
    sizes = [items]
    while len(sizes) < MOST_RUNGS and sizes[0] // RATE >= FEWEST:
        sizes.insert(0, sizes[0] // RATE)
    return sizes


def of_paper(paper: str, depth: int) -> Callable[[Trial], bool]:
    """Whether a trial is by itself that paper's method."""
    return lambda trial: trial.paper(depth) == paper


def reported(results: Sequence[Result], costs: Costs, speed: float) -> dict[str, tuple[Trial, float]]:
    """The best single papers' methods, the best fast method and the best of all, by the last rung.

    Among equals the cheaper is best, then the one without a filter, then the earlier.
    """
    last = max(each.rung for each in results)
    trials = [each for result in results if result.rung == last for each in result.trials()]
    wanted: dict[str, Callable[[Trial], bool]] = {paper: of_paper(paper, costs.depth) for paper in PAPERS}
    wanted |= {"fast": lambda trial: costs.of(trial) <= speed, "composed": lambda trial: True}
    found = {}
    for name, fits in wanted.items():
        if some := [each for each in trials if fits(each[0])]:
            found[name] = min(some, key=lambda each: (-each[1], costs.of(each[0]), each[0].filter != NO_FILTER))
    return found


def about(seconds: float) -> str:
    """A length of time in words.

    Example:
        >>> about(20), about(700)
        ('less than a minute', 'about 12 minutes')
    """
    return "less than a minute" if seconds < 60 else f"about {-(-seconds // 60):.0f} minutes"


def _order(results: Sequence[Result], wanted: Callable[[Trial], bool]) -> list[Arm]:
    """Arms by the best of their trials that are wanted and that no other arm has; of equals the earlier first."""
    there = {result.arm for result in results}
    scored: dict[Arm, float] = {}
    for result in results:
        for trial, score in result.trials():
            if (trial.arm == result.arm or trial.arm not in there) and wanted(trial):
                scored[result.arm] = max(score, scored.get(result.arm, score))
    return sorted(scored, key=lambda arm: -scored[arm])


def _nosink(arm: Arm) -> NoSink:
    assert arm.nosink is not None
    return arm.nosink


def _k(result: Result | None) -> int:
    return 0 if result is None else int(_nosink(result.arm).k or 0)


def _best(results: Sequence[Result]) -> Result | None:
    """The highest score; among equals the smaller k, then the smaller k0, then the earlier (NoSink, section 4.1)."""
    scored = [result for result in results if result.scored]
    return min(scored, key=lambda each: (-each.scored[0].score, _k(each), _nosink(each.arm).plan.k0), default=None)


def _check_options(preset: str, given: Mapping[str, Any]) -> None:
    """Refuse options of the other preset, and numbers that cannot be."""
    own: dict[str, dict[str, Any]] = {
        "compose": {"space": None, "minutes": None, "tokens": None, "speed": SPEED},
        "nosink": {"everything": False, "pooling": "mean", "m": 1},
    }
    if preset not in own:
        raise ValueError(f"preset={preset!r} is not known: choose of {list(own)}.")
    for name, values in own.items():
        for option, default in values.items():
            if name != preset and given[option] != default:
                raise ValueError(f"{option}={given[option]!r:.60} belongs to preset {name!r}. Drop it, or the preset.")
    for option in ("minutes", "tokens", "speed"):
        value = given[option]
        if value is not None and (type(value) not in (int, float) or not value > 0):
            raise ValueError(f"{option}={value!r} must be a number above 0.")
    if given["pooling"] not in ("mean", "last"):
        raise ValueError(f"pooling={given['pooling']!r} is not known: choose 'mean' or 'last'.")
    if type(given["m"]) is not int or given["m"] < 1:
        raise ValueError(f"m={given['m']!r} must be a whole number from 1 on.")


def _check_kind(preset: str, kind: str) -> None:
    if kind == "Retrieval":
        raise ValueError(
            "Retrieval is not searched with: every reading would search all documents. Name the kind Reranking, and "
            "each query's judged documents are ranked."
        )
    if preset == "compose" and kind in ("NER", "WordSense"):
        raise ValueError(f"{kind} is not composed: its words have vectors of their own. Use the preset 'nosink'.")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat.update(_flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat
