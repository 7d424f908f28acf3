"""SetFit: learn four topics from eight sentences of each, in two languages: few_labels.py my_model."""

import json
import sys
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from setfit import SetFitModel, Trainer, TrainingArguments
from sklearn.linear_model import LogisticRegression

SENTENCES_FILE = Path(__file__).parents[1] / "sentences.jsonl"
TOPICS = ("animals", "finance", "space", "travel")


def count_right(classifier: SetFitModel, test_set: Dataset) -> str:
    predictions = classifier.predict(test_set["text"])
    pairs = zip(predictions, test_set["label"], strict=True)
    right_count = sum(prediction == label for prediction, label in pairs)
    return f"{right_count} of {len(test_set)} right"


rows = []
for line in SENTENCES_FILE.read_text(encoding="utf-8").splitlines():
    sentence = json.loads(line)
    if sentence["topic"] in TOPICS:
        rows.append({"text": sentence["text"], "label": sentence["topic"]})
# Every ten sentences share a topic; the first four of them are for training.
training_rows = [row for row_index, row in enumerate(rows) if row_index % 10 < 4]
test_rows = [row for row_index, row in enumerate(rows) if row_index % 10 >= 4]
training_set = Dataset.from_list(training_rows)
test_set = Dataset.from_list(test_rows)

model = SentenceTransformer(sys.argv[1], trust_remote_code=True)
classifier = SetFitModel(model, LogisticRegression(max_iter=1000))
classifier.fit(training_set["text"], training_set["label"], num_epochs=1)
print(f"head alone: {count_right(classifier, test_set)}")
arguments = TrainingArguments("checkpoints", max_steps=10, report_to="none")
Trainer(classifier, arguments, train_dataset=training_set).train()
print(f"model and head: {count_right(classifier, test_set)}")
