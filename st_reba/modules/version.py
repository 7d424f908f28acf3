"""The version, alone: it also stands in every repository that carries these modules."""

__version__ = "0.1.0"
