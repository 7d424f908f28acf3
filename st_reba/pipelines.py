"""Pipelines made of a model's modules: new models beside the old one, which goes on as it is."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from torch import nn

from .modules.decoder import DecoderTransformer

M = TypeVar("M", bound=nn.Module)


def rebuilt(model: SentenceTransformer, modules: Iterable[nn.Module]) -> SentenceTransformer:
    """A model of other modules, all else as it was; weights and tokenizer are shared, the modules are copied."""
    copies = [copied(module) for module in modules]
    new = copied(model)
    new._modules = {str(number): module for number, module in enumerate(copies)}
    new.prompts = dict(model.prompts)
    new.model_card_data = copy.copy(model.model_card_data)
    new.model_card_data.register_model(new)
    for module in copies:
        if isinstance(module, Module):
            # What follows the input module finds that of the new model, and not the old one's.
            module.on_model_ready(new)
    return new


def copied(module: M) -> M:
    """A module beside another, with the same weights and submodules."""
    other = copy.copy(module)
    for name in ("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks"):
        # Else what is put into one module would be in the other too.
        other.__dict__[name] = copy.copy(other.__dict__[name])
    if isinstance(other, DecoderTransformer):
        # What the old model's pooling asks for is not asked of the new one.
        other.watchers = []
    return other
