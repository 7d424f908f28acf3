"""Texts without labels: read, each once, drawn by a seed; what cannot be used is counted and told."""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from tqdm.auto import tqdm

from ..corpus.records import Reading, Reject
from ..corpus.source import Input, open_source
from .signals import views
from .views import Viewed

# Below so many a choice is one by chance, and most filters cannot be fitted.
FEWEST = 50
# Of 192 numbers, mini's, a whitening can be fitted from about so many on (docs/results/tune.md).
ENOUGH = 800
# All are ranked for each: of more the cosines would not fit into memory.
MOST = 20_000


@dataclass(frozen=True)
class Unlabelled:
    """A draw of different texts.

    Args:
        name: Where they are from.
        texts: The texts.
        read: Records that were read.
        left_out: How many cannot be used, by reason.
        writing: How many of the texts are in each script.
    """

    name: str
    texts: tuple[str, ...]
    read: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    writing: Mapping[str, int] = field(default_factory=dict)

    @property
    def items(self) -> Viewed:
        """The texts as items."""
        made = views(self.texts)
        return Viewed.of(self.texts, list(zip(made.first, made.second, strict=True)))

    @property
    def mixed(self) -> bool:
        """Whether several scripts have each over a twentieth of the texts. Kana stand among Chinese characters."""
        counts: Counter[str] = Counter()
        for script, number in self.writing.items():
            counts["CJK" if script in ("HIRAGANA", "KATAKANA") else script] += number
        return sum(number > len(self.texts) / 20 for script, number in counts.items() if script) > 1

    @property
    def warning(self) -> str:
        """What makes the choice less certain; "" where nothing does."""
        words = []
        if len(self.texts) < ENOUGH:
            words.append(f"{len(self.texts)} texts are few: with {ENOUGH} or more the choice is steadier")
        if (short := self.left_out.get(SHORT, 0)) > self.read / 10:
            words.append(f"{short} of {self.read} texts are too short for two views, and had no say")
        return "; ".join(words)

    def __str__(self) -> str:
        facts = [f"{number} {reason}" for reason, number in self.left_out.items() if number]
        facts += [f"{number} in {script}" for script, number in self.writing.items() if len(self.writing) > 1]
        return f"{self.name}: {len(self.texts)} of {self.read} texts" + (f" ({', '.join(facts)})" if facts else "")


SHORT, REPEATED, UNREADABLE = "too short for two views", "repeated", "empty or not readable"


def unlabelled(
    texts: Input,
    *,
    sample: int = 1000,
    seed: int = 0,
    text_column: str | None = None,
    disable: bool | None = True,
) -> Unlabelled:
    """Read texts, and draw some of those of which two views can be made.

    A draw does not depend on the order of the texts, and where there are several scripts, each has the same share, as
    far as there are texts of it.

    Args:
        texts: A file, a folder, a table or texts, as :func:`st_reba.corpus.encode_corpus` takes them.
        sample: How many to draw.
        seed: Of the draw.
        text_column: The column or key of the text; None: text, content, body, …
        disable: Show no bar; None: on a terminal.

    Raises:
        ValueError: There are too few texts, or an argument cannot be.

    Example:
        >>> found = unlabelled([f"text number {n} is about {n} things" for n in range(60)] * 2)
        >>> print(found)
        the list: 60 of 120 texts (60 repeated)
    """
    if isinstance(sample, bool) or not isinstance(sample, int) or not FEWEST <= sample <= MOST:
        raise ValueError(f"sample={sample!r} must be a whole number from {FEWEST} to {MOST:,}.")
    source = open_source(texts, Reading(text_column, ""))
    # By script the texts whose hashes are the smallest: one text, one hash, whatever the order.
    drawn: dict[str, list[tuple[int, str]]] = {}
    seen: set[bytes] = set()
    counts: Counter[str] = Counter()
    read = 0
    for record in tqdm(source.read(), desc="Reading", total=source.total, unit="text", disable=disable):
        read += 1
        if isinstance(record, Reject):
            counts[UNREADABLE] += 1
            continue
        text = record.text.strip()
        digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
        if digest[:8] in seen:
            counts[REPEATED] += 1
            continue
        seen.add(digest[:8])
        if not views([text]).rows:
            counts[SHORT] += 1
            continue
        # The smallest of a heap is its first: negative hashes keep the largest there.
        entry = (-int.from_bytes(digest, "big"), text)
        heap = drawn.setdefault(script_of(text), [])
        (heapq.heappush if len(heap) < sample else heapq.heappushpop)(heap, entry)
    shares = shared({script: len(heap) for script, heap in drawn.items()}, sample)
    chosen = [each for script, heap in drawn.items() for each in heapq.nlargest(shares[script], heap)]
    found = Unlabelled(source.name, tuple(text for _, text in sorted(chosen, reverse=True)), read, counts, shares)
    if len(found.texts) < FEWEST:
        raise ValueError(
            f"{found.name}: {len(found.texts)} different texts can be used, but {FEWEST} are needed at the least, and "
            f"{ENOUGH} are better. {_why(found)}Give more texts, or longer ones."
        )
    return found


def _why(found: Unlabelled) -> str:
    """What was read, where not all of it can be used."""
    left = [f"{number} are {reason}" for reason, number in found.left_out.items()]
    return f"Of {found.read} that were read, {', '.join(left)}. " if left else ""


def shared(there: Mapping[str, int], sample: int) -> dict[str, int]:
    """How many to take of each of some groups: as many of each, as far as there are so many.

    Example:
        >>> shared({"LATIN": 900, "CJK": 900, "GREEK": 3}, 100)
        {'GREEK': 3, 'LATIN': 48, 'CJK': 49}
    """
    found: dict[str, int] = {}
    left = sample
    for place, (name, count) in enumerate(sorted(there.items(), key=lambda each: each[1])):
        found[name] = min(count, left // (len(there) - place))
        left -= found[name]
    return found


@cache
def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def script_of(text: str) -> str:
    """The script of most of a text's letters, as Unicode names it; "" where there are none.

    Example:
        >>> script_of("银行 bank 今天关门了"), script_of("Привет, мир"), script_of("1 + 1 = 2")
        ('CJK', 'CYRILLIC', '')
    """
    counts = Counter(filter(None, map(_script, text[:2000])))
    return counts.most_common(1)[0][0] if counts else ""
