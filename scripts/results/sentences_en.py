"""English sentences: STS-B, STS13 to STS16 and StackOverflow, by method and base; fills docs/results/sentences-en.md.

python scripts/results/sentences_en.py DATA smollm2=FOLDER gemma3=FOLDER qwen2.5=FOLDER --trained MINILM
"""

import pandas as pd
from common import CHOOSING, SAMPLE, arguments, chosen_k, fill, methods_of, scores, semeval, stsb, table

from st_reba.evaluation.tasks import read_task

# Pairs of each year, and titles of StackOverflow, that are drawn.
PAIRS, TITLES = 125, 500
# Methods that are also shown behind a filter.
FILTERED = (
    "prompteol prompteol:read=attention prompteol:template=reverseol,read=attention echo:pooling=mean,layer={half}"
)

given = arguments(__doc__)
clustering = {"text": "title", "label": "label"}
columns = {
    name: (given.data / "clustering" / f"{part}_StackOverflow.txt").read_text(encoding="utf-8").splitlines()
    for name, part in clustering.items()
}
topics = read_task(pd.DataFrame(columns), "Clustering", name="StackOverflow", limit=TITLES)
pairs = [stsb(given.data, "test"), *(semeval(given.data, year, PAIRS) for year in (2013, 2014, 2015, 2016))]
sample = stsb(given.data, "dev").texts[:SAMPLE]
for base in given.bases:
    rows = {base.name: "itself"}
    if base.loading:
        rows = methods_of(base, chosen_k(base, stsb(given.data, "dev", CHOOSING)), given.skip)
        fitted = [label for label, method in rows.items() if method in FILTERED.format(half=base.depth // 2).split()]
        rows |= {f"{label} + filter": f"abtt-2 {rows[label]}" for label in fitted}
    frame = scores(base, rows, [*pairs, topics], sample)
    frame.insert(len(pairs), "mean of STS", frame.iloc[:, : len(pairs)].mean(axis=1))
    fill("sentences-en.md", base.name, table(frame, base.name))
