"""A page that compares methods, looks inside a text, and searches; needs the extra ``explore``."""

from .serve import DEFAULT_MODELS as DEFAULT_MODELS
from .serve import launch as launch
