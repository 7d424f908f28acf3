"""HTTP server for a saved model that OpenAI's clients understand. Needs the extra ``serve``."""

from .run import serve as serve
