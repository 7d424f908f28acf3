"""Load a model after checking that its files ask for no foreign code, or more than they hold."""

from __future__ import annotations

from .configurations import check_base as check_base
from .configurations import check_gguf_folder as check_gguf_folder
from .configurations import check_tokenizer as check_tokenizer
from .loading import check_repository as check_repository
from .loading import load as load
from .numbers import limit_adapter as limit_adapter
from .numbers import limit_numbers as limit_numbers
from .repository import Repository as Repository
from .repository import RepositoryRefused as RepositoryRefused
from .repository import panics_as_errors as panics_as_errors
