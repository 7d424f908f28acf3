"""Search among the captions of STS-B's test part: the rank of the first right one; fills docs/results/captions.md.

python scripts/results/captions.py DATA smollm2=FOLDER gemma3=FOLDER qwen2.5=FOLDER --trained MINILM
"""

import re

import numpy as np
import pandas as pd
from common import CHOOSING, arguments, chosen_k, fill, methods_of, stsb, table

from st_reba.filters import Filter

# Queries, and what a right caption holds: a match of every pattern.
QUERIES = {
    "a man plays the guitar": (r"\b(man|boy)\b", r"guitar", r"play|sing"),
    "someone is cutting onions": (r"onion", r"\b(slic|cut|chop|dic)"),
    "a dog runs in the snow": (r"\b(dogs?|poodles)\b", r"snow", r"run|walk|play|frolic"),
    "a woman dances": (r"\b(wom[ae]n|lady|girls?|ballerina)\b", r"danc"),
    "kids jump on a trampoline": (r"kids|children", r"trampoline"),
    "a person rides a horse": (r"horse", r"\brid(e|es|ing)\b"),
    "he is peeling a potato": (r"\b(man|guy|person)\b", r"peel", r"potato"),
    "soccer players kick a ball": (r"soccer|kick", r"play|ball"),
    "a cat lies on the sofa": (r"\bcats?\b", r"couch|sofa|coach|chair"),
    "a plane in the sky": (r"plane", r"flight|fly"),
    "a train on the rails": (r"train", r"track"),
    "a boy on a skateboard": (r"skateboard",),
    "cows behind a fence": (r"cow", r"fence|\bpen\b"),
    "people eating in a restaurant": (r"restaurant|dining table|eating in",),
    "a man holds a sleeping baby": (r"\b(man|father)\b", r"sleep|napping", r"baby|infant"),
    "surfing on a big wave": (r"surf", r"wave"),
    "a lady puts on lipstick": (r"make-?up|lipstick|eyeliner",),
    "somebody climbs a mountain": (r"climb", r"cliff|rock|hill"),
    "a couple kisses": (r"kiss",),
    "a woman talks on the phone": (r"\b(woman|girls?)\b", r"phone"),
}

given = arguments(__doc__)
lines = (given.data / "sts" / "sts-test.csv").read_text(encoding="utf-8").splitlines()
rows = [line.split("\t") for line in lines]
captions = list(dict.fromkeys(text for row in rows if row[0] == "main-captions" for text in row[5:7]))
right = [[all(re.search(one, text, re.I) for one in wanted) for text in captions] for wanted in QUERIES.values()]
for base in given.bases:
    methods = {base.name: "itself"}
    if base.loading:
        methods = methods_of(base, chosen_k(base, stsb(given.data, "dev", CHOOSING)), given.skip)
        third = base.depth // 3
        methods[f"the same, k = {third}"] = f"nosink:setting=mask0-bidir,k={third}"
    vectors, frame = base.vectors(list(methods.values()), [*captions, *QUERIES]), pd.DataFrame(dtype=float)
    for label, method in methods.items():
        own = vectors[method]
        behind = Filter.fit(own[: len(captions)], "abtt", r=2).apply(own)
        for name, each in (("", own), (", filter", behind)):
            unit = each / np.linalg.norm(each, axis=1, keepdims=True)
            order = (unit[len(captions) :] @ unit[: len(captions)].T).argsort(axis=1)[:, ::-1]
            ranks = np.array([row[places].argmax() + 1 for row, places in zip(np.array(right), order, strict=True)])
            frame.loc[label, f"first is right{name}"] = (ranks == 1).sum()
            frame.loc[label, f"MRR × 100{name}"] = 100 * (1 / ranks).mean()
            frame.loc[label, f"guitar{name}"] = ranks[0]
    fill("captions.md", base.name, table(frame, base.name, digits=0, bold=False))
