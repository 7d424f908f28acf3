"""SetFit: learn four topics from eight sentences of each, in two languages: few_labels.py my_model."""

import json
import sys
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

lines = Path(__file__).parents[1].joinpath("sentences.jsonl").read_text(encoding="utf-8").splitlines()
topics = ("animals", "finance", "space", "travel")
rows = [{"text": one["text"], "label": one["topic"]} for one in map(json.loads, lines) if one["topic"] in topics]
few, rest = (Dataset.from_list([row for n, row in enumerate(rows) if (n % 10 < 4) is known]) for known in (True, False))

model = SentenceTransformer(sys.argv[1], trust_remote_code=True)
classifier = SetFitModel(model, LogisticRegression(max_iter=1000))
classifier.fit(few["text"], few["label"], num_epochs=1)
for after in ("head alone", "model and head"):
    right = [found == known for found, known in zip(classifier.predict(rest["text"]), rest["label"], strict=True)]
    print(f"{after}: {sum(right)} of {len(right)} right")
    if after == "head alone":
        how = TrainingArguments("checkpoints", max_steps=10, report_to="none")
        Trainer(classifier, how, train_dataset=few).train()
