"""The sentences of a model card that depend on the model: what it computes, what it costs, what it cannot do."""

from __future__ import annotations

from ..filtered import told
from ..recipe import About
from .facts import Facts, is_embedded
from .layer_text import held, reads

PAPERS = {
    "reba": "*Retrieval Backward Attention without Additional Training*",
    "echo": "*Repetition Improves Language Model Embeddings*",
    "nosink": "*Look Both Ways and No Sink*",
}
CITATIONS = {
    "reba": """@misc{reba,
  title = {Retrieval Backward Attention without Additional Training: Enhance Embeddings of Large Language Models via
           Repetition},
  author = {Anonymous},
  note = {Anonymous submission}
}""",
    "echo": """@misc{springer2024repetition,
  title = {Repetition Improves Language Model Embeddings},
  author = {Springer and others},
  year = {2024}
}""",
    "nosink": """@misc{lin2025look,
  title = {Look Both Ways and No Sink: Converting LLMs into Text Encoders without Training},
  author = {Lin, Ziyong and Wu, Haoyi and Wang, Shu and Tu, Kewei and Zheng, Zilong and Jia, Zixia},
  year = {2025}
}""",
    "abtt": """@inproceedings{mu2018allbutthetop,
  title = {All-but-the-Top: Simple and Effective Postprocessing for Word Representations},
  author = {Mu, Jiaqi and Viswanath, Pramod},
  booktitle = {International Conference on Learning Representations},
  year = {2018}
}""",
}
# What a post-filter does with a vector x.
_FILTERS = {
    "center": "the sample's mean is taken away",
    "abtt": "the sample's mean and what lies along its first {r} principal directions are taken away",
    "standardize": "the sample's mean is taken away, and each dimension divided by its standard deviation there",
    "whiten": "the sample's mean is taken away, and the vector written in its first {dimensions} principal directions"
    "{behind}, each divided by its standard deviation{power}",
}
# What token i sees in a layer of each kind.
KINDS = {
    "forward": "the tokens up to i, as in the base.",
    "backward": "the tokens from i on.",
    "bidirectional": "all tokens.",
    "nosink-forward": "the tokens up to i, but not the first {m} (the sink), which later tokens do not see.",
    "nosink-bidirectional": "all tokens, but not the first {m} (the sink), which later tokens do not see.",
    "rerouted": "the tokens up to i, and the very last one.",
}
_METHODS = {
    "reba": "ReBA (repetition and backward attention)",
    "echo": "Echo (repetition)",
    "classical": "the classical method (hidden states, pooled)",
    "prompteol": "PromptEOL (a prompt that asks for one word)",
    "nosink": "NoSink (converted layers)",
}
_SEEN = {
    "last_copy": "the content of {copy}",
    "repeats": "the content of copies 2 to {k}",
    "last_copy_and_end": "the content of {copy} and the special tokens behind it",
    "end": "the very last position",
    "all": "every position, template and special tokens included",
}
# What those ask who pass a model on; the text of a licence says more.
_NOTICES = {
    "llama2": "Llama 2 is licensed under the LLAMA 2 Community License, Copyright (c) Meta Platforms, Inc. All Rights "
    "Reserved.",
    "llama3": "Built with Meta Llama 3.",
    "llama3.1": "Built with Llama.",
    "llama3.2": "Built with Llama.",
    "gemma": "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms.",
}


def why_blocked(facts: Facts, about: About, name: str) -> str | None:
    """Why a recipe alone makes no model, and what to do; None: it does."""
    if about.status == "ready":
        return None
    reason = {
        "remote-code": "The base needs modelling code of its own, which was not read or run for this card.",
        "old-transformers": "The base's own code does not run with the versions of transformers that st_reba needs.",
        "tune": "The number of converted layers is not known: it is to be tuned on labelled data first.",
    }[about.status]
    remedy = {
        "remote-code": f"Whoever has read that code and trusts it can try `st-reba zoo build {name} {name} "
        "--trust-remote-code`.",
        "old-transformers": "It cannot be built.",
        "tune": f"`st-reba tune {facts.base} FILE OUT` finds it, and `st-reba build OUT/recipe.yaml {name}` builds the "
        f"model; or name it: `st-reba zoo build {name} {name} --k …`.",
    }[about.status]
    return " ".join(part for part in (reason, about.note, remedy) if part)


def summary(facts: Facts, about: About) -> str:
    """What the model is, in two sentences."""
    base = f"`{facts.base}`" if is_embedded(facts) else _base(facts)
    dimension = f" of {facts.dimension} dimensions" if facts.dimension else ""
    if facts.templates is None:
        weights = "The weights were fine-tuned (see Training)" if facts.training else "No weight was trained or changed"
        return (
            f"Text embeddings{dimension} by {base}, which is an embedder already, its layers converted as in NoSink. "
            f"{weights}: what {'else ' if facts.training else ''}differs from the base is what its layers see."
        )
    converted = facts.plan is not None or facts.setting is not None
    also = ", with NoSink's layers" if converted and facts.method != "nosink" else ""
    parts = ["how a text is laid out"] if facts.copies > 1 or not facts.plain else []
    parts += ["what the layers see"] if converted else []
    changed = " and ".join([", ".join(parts), ""]) if parts else ""
    weights = (
        "The weights are quantized, but none was trained" if facts.quantized else "No weight was trained or changed"
    )
    if facts.training:
        weights = "The weights were fine-tuned (see Training)"
    return (
        f"Text embeddings{dimension} from the hidden states of {base}, by {_METHODS[facts.method]}{also}. {weights}: "
        f"what {'else ' if facts.training else ''}differs from the base is {changed}how the hidden states are pooled."
    )


def properties(facts: Facts, about: About) -> list[tuple[str, str]]:
    """The table of a model's properties, those that are known."""
    revision = f"`{facts.base_revision}`" if facts.base_revision else "not pinned"
    pooling = facts.pooling + (f" over {facts.options['span']}" if "span" in facts.options else "")
    copies = (
        f"{facts.copies} of each piece of at most {facts.options['chunk']} tokens" if "chunk" in facts.options else ""
    )
    rows: list[tuple[str, object]] = [
        ("base", _base(facts)),
        ("base revision", None if is_embedded(facts) else revision),
        ("tokenizer", facts.tokenizer),
        ("architecture", facts.architecture and f"`{facts.architecture}`"),
        ("parameters", about.parameters),
        ("method", facts.method + (", as the authors' code computes it" if facts.published else "")),
        ("pooling", pooling),
        ("copies of the text", None if facts.templates is None else copies or facts.copies),
        ("NoSink setting", facts.setting and f"`{facts.setting}`"),
        ("hidden states", "; ".join(filter(None, (reads(facts), held(facts))))),
        ("layers", facts.layers),
        ("dimensions", facts.dimension),
        ("post-filter", facts.postfilter and told(facts.postfilter)),
        ("length of a vector", "1" if facts.normalized else "not scaled"),
        ("positions", facts.positions),
        ("tokens of a text that are read", facts.budget),
        ("weights", _weights(facts)),
        ("languages of the base", ", ".join(about.language)),
        ("modules", " → ".join(f"`{name}`" for name in facts.modules) if facts.templates is not None else None),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "", ())]


def _weights(facts: Facts) -> str | None:
    if facts.adapter:
        return f"an adapter (PEFT) of the base's, which are loaded in {facts.dtype}"
    return "none here: the base's are loaded" if facts.from_base else facts.dtype


def equation(facts: Facts) -> str:
    """The text's vector, as the configuration has it."""
    if facts.method != "reba":
        return _pooled(facts)
    if facts.published:
        if facts.pooling == "last":
            rows = (
                "text = Σ_t a_t · v_t / Σ_t a_t, over all positions t, with a_t = A^new[T, t], T the very last position"
            )
        else:
            rows = (
                "text = Σ_t a_t · v_t / Σ_t a_t, over all positions t,\n"
                "       with a_t = Σ A^new[i, t] over the first half of the rows i, those up to t"
            )
        return f"A^new = max over l and h of (A^{{l,h}} + (A^{{l,h}})ᵀ) / 2\n{rows}"
    where = "all positions" if facts.options.get("include_special") else "the content positions"
    weights = "Σ_t A^new[p(i), t] · v_t"
    if "chunk" in facts.options:
        lines = [
            "A^new = max over l and h of (A^{l,h} + (A^{l,h})ᵀ) / 2, of the piece's run; v'_t: its hidden states",
            f"e_i   = A^new[p(i), p(i)] · v_i + Σ_t A^new[p(i), t] · v'_t over {where} t > p(i) of that run,",
            "        p(i) the place of token i in its copy 1",
        ]
    else:
        lines = [
            "A^new = max over l and h of (A^{l,h} + (A^{l,h})ᵀ) / 2",
            f"e_i   = {weights} over {where} t ≥ p(i) of {_all_copies(facts)}, p(i) the place of token i in copy 1",
        ]
    if facts.options.get("normalize_weights"):
        lines.append("        the weights of each e_i divided by their sum")
    lines.append("text  = e_n" if facts.pooling == "last" else "text  = (1/n) Σ_i e_i")
    return "\n".join(lines)


def method_notes(facts: Facts) -> list[str]:
    """What the equation does not say."""
    notes = []
    if facts.normalized and facts.templates is not None:
        notes.append("The text's vector is then scaled to length 1.")
    if facts.postfilter is not None:
        record = facts.postfilter
        behind = f" behind the top {record['r']}" if record.get("r") else ""
        power = f" to the power {record['power']:g}" if record.get("power", 1) != 1 else ""
        change = _FILTERS[record["kind"]].format(**{**record, "behind": behind, "power": power})
        again = " and the result is scaled to length 1 again" if facts.normalized else ""
        notes.append(
            f"A linear post-filter follows: {change}{again}. It was fitted on {facts.postfilter['texts']:,} texts "
            "without labels. Vectors of tokens and words are not filtered."
        )
    if weights := facts.options.get("weights"):
        shown = ", ".join(f"{weight:g}" for weight in weights)
        notes.append(
            f"This is computed in each of {len(weights)} templates (⊕ stands between them), and their vectors are "
            f"added, multiplied by {shown}."
        )
    if prepend := facts.options.get("prepend"):
        notes.append(
            f"A placeholder stands in front of the text (Token Prepending): behind each of the first {prepend} layers "
            "it takes over the very last token's hidden state."
        )
    if facts.method == "reba" and facts.plan is not None:
        notes.append("A^new is the maximum over every pass of every layer, each as it sees.")
    if facts.plan is None and facts.setting is not None:
        notes.append(f"The layers are converted by the paper's setting `{facts.setting}`; how many is to be tuned.")
    if facts.published and facts.method == "nosink":
        notes.append("INTER and EXTRA are read as in the authors' code.")
    if facts.options.get("non_finite") == "zeros":
        notes.append("A text whose hidden states are not finite gets a zero vector, not an error.")
    return notes


def costs(facts: Facts) -> list[str]:
    """What a text costs."""
    k, m = facts.copies, facts.positions
    lines = []
    if facts.templates is None:
        lines.append("A text takes the positions that it takes in the base" + (f", at most {m:,}." if m else "."))
    elif "chunk" in facts.options:
        chunk = facts.options["chunk"]
        run = f"{k}·n/P + s"
        lines.append(
            f"A text of n tokens takes n + s positions once (s: special and template tokens), and each of its pieces "
            f"{run}: all P of them for `mean` and words, the last one for `last`. The cost grows with n, not n²."
        )
        lines.append(_budget(facts, "in one copy") + f" A piece has at most {chunk} tokens.")
    else:
        s = f"s = {facts.overhead}" if facts.overhead is not None else "s"
        times = "n" if k == 1 else f"{k}·n"
        words = (
            "the tokenizer's special tokens" if facts.plain and not facts.separator else "special and template tokens"
        )
        positions = f"A text of n tokens takes {times} + s positions, {s} of them {words}"
        lines.append(
            positions + ("." if k == 1 else f": about {k} times the work of reading it once, more for attention.")
        )
        lines.append(_budget(facts, "a copy" if k > 1 else ""))
    if weights := facts.options.get("weights"):
        lines.append(f"It runs {len(weights)} times, once a template; s is that of the longest.")
    if facts.passes and facts.depth and facts.passes != facts.depth:
        lines.append(f"A position passes {facts.passes} layers, where the base has {facts.depth}.")
    if facts.method == "reba" and "chunk" not in facts.options:
        need = {
            "last": "`last` needs about the memory that Echo needs",
            "mean": "`mean` needs about 4·n·T bytes a text beside what Echo needs (T positions)",
        }[facts.pooling]
        lines.append(f"{need}; no matrix of attention is held where the architecture calls transformers' interface.")
    return [line for line in lines if line]


def limits(facts: Facts, about: About, *, recipe_only: bool, measured: bool) -> list[str]:
    """What the model cannot do, and what nobody has seen it do."""
    lines = []
    if facts.templates is not None and not facts.training:
        lines.append(
            "Nothing was trained for embedding: a trained embedder of like size may well be better. Measure both on "
            "your own data."
        )
    if about.note and about.status == "ready":
        lines.append(about.note)
    if facts.budget is not None or facts.positions is not None:
        several = facts.copies > 1 and "chunk" not in facts.options
        cut = f" beyond {facts.budget:,} tokens" if facts.budget is not None else ""
        lines.append(f"What a text holds{cut or ' beyond its budget'} is cut{', alike in every copy' * several}.")
    if recipe_only and not facts.built:
        lines.append(
            "This card was written from the recipe alone: the base was not downloaded and no vector of this model was "
            "computed. Dimensions and what else only the base tells are therefore missing."
        )
    lines.append("No vector of this model was checked beside one of the authors' own code.")
    if not measured:
        lines.append("No benchmark was run with this model.")
    if facts.method == "reba" and "chunk" in facts.options:
        lines.append("The paper proposes to cut texts into pieces and tests it nowhere; nor was it tested here.")
    if facts.dtype in ("bfloat16", "float16"):
        lines.append(
            f"Run in {facts.dtype}, as stored, a vector is slightly off that in float32, and varies with its batch."
        )
    if facts.quantized:
        lines.append("The vectors are those of the quantized weights.")
    if facts.from_base and not facts.base_revision:
        lines.append("The base's revision is not pinned: when its weights change, so do the vectors.")
    return lines


def licence_text(facts: Facts, about: About) -> str:
    """Whose licence holds."""
    base = _base(facts)
    if about.licence is None:
        return f"The licence of {base} holds for its weights. Which one that is, is not known here: see the base."
    named = f"`{about.licence}`" if about.licence != "other" else "one that is not in the Hub's list, or not known here"
    link = f" ([its text]({about.licence_link}))" if about.licence_link else ""
    notice = f" Whoever passes them on has to say: {_NOTICES[about.licence]}" if about.licence in _NOTICES else ""
    return (
        f"The weights are those of {base}, whose licence holds: {named}{link}.{notice} The code of st_reba is under "
        "Apache-2.0."
    )


def sources(facts: Facts, about: About) -> list[str]:
    """The papers to cite."""
    own = {"reba": "reba", "echo": "echo", "classical": "echo", "prompteol": "echo", "nosink": "nosink"}[facts.method]
    found = [own, *(["nosink"] if facts.plan is not None else []), *([about.paper] if about.paper else [])]
    found += ["abtt"] if facts.postfilter is not None and facts.postfilter["kind"] == "abtt" else []
    return list(dict.fromkeys(found))


def _base(facts: Facts) -> str:
    if is_embedded(facts):
        return f"`{facts.base}` (embedded in st_reba)"
    if facts.base is not None and facts.base.count("/") == 1:
        return f"[{facts.base}](https://huggingface.co/{facts.base})"
    return f"`{facts.base}`" if facts.base else "a base whose name is not known"


def _all_copies(facts: Facts) -> str:
    return f"all {facts.copies} copies" if facts.copies > 1 else "the text"


def _pooled(facts: Facts) -> str:
    copy = f"copy {facts.copies}" if facts.copies > 1 else "the text"
    span = facts.options.get("span", "end" if facts.method == "prompteol" else "last_copy")
    if facts.pooling == "cls":
        return "text = v at the first position"
    seen = _SEEN[span].format(copy=copy, k=facts.copies)
    if span == "end":
        return "text = v at the very last position"
    if facts.pooling == "last":
        return f"text = v at the last position of {seen}"
    if facts.pooling == "mean":
        return f"text = the average of v over {seen}"
    return f"text = {facts.pooling} of v over {seen}"


def _budget(facts: Facts, of: str) -> str:
    halved = ", and half of that, so that two copies cost what one did" * bool(facts.options.get("compute_matched"))
    rule = f"⌊(M − s) / {facts.copies}⌋" if facts.copies > 1 and "chunk" not in facts.options else "M − s"
    place = f" {of}" if of else ""
    if facts.budget is not None and facts.positions is not None:
        return (
            f"With M = {facts.positions:,} positions, {facts.budget:,} tokens{place} are read ({rule}{halved}); a "
            "prompt's words take from them."
        )
    if facts.positions is not None:
        return f"With M = {facts.positions:,} positions, {rule} tokens{place} are read{halved}."
    return f"The base's own limit M of positions holds: {rule} tokens{place} are read{halved}."
