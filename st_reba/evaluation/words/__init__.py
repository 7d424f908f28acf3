"""Word sense: in which of four sentences does a word mean something else?"""

from __future__ import annotations

from .evaluate import evaluate_words
from .questions import Question, WordTask, read_words

__all__ = ["Question", "WordTask", "evaluate_words", "read_words"]
