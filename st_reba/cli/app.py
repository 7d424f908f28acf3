"""The command ``st-reba``: how a function becomes a command, and how a mistake is told."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from ..modules.options import alternatives

_F = TypeVar("_F", bound=Callable[..., Any])
_CONTEXT = {"help_option_names": ["-h", "--help"]}
# An option as Python's messages write it: name='value', name=True.
_ASSIGNED = re.compile(r"""(?<![\w.:,'"(-])(\w+)=('[^']*'|"[^"]*"|[^\s,;:()'`]+)""")
# Or as those do that know no such name: name (=value).
_GIVEN = re.compile(r"""(\w+) \(=((?:'[^']*'|"[^"]*"|[^)])*)\)""")
# And as some name the flag behind it: split (--split).
_BESIDE = re.compile(r"(?<![\w-])(\w+) \((--[\w-]+)\)")
_FLAGS = re.compile(r" \((--[\w-]+(?:, --[\w-]+)*)\)")


class Group(TyperGroup):
    """Commands whose mistakes end in one line on stderr."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        inside = [f"{group} {name}" for group, each in self.commands.items() if name in getattr(each, "commands", ())]
        if inside and name not in self.commands:
            ctx.fail(f"No such command {name!r}. Did you mean {inside[0]!r}?")
        return super().resolve_command(ctx, args)

    def main(self, *given: Any, **options: Any) -> Any:
        ends = options.pop("standalone_mode", True)
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show Chinese must not end the command.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        try:
            status = super().main(*given, **{**options, "standalone_mode": False}) or 0
        except Exception as error:
            # Only click's own have this: a command tells its errors itself.
            if not hasattr(error, "format_message"):
                raise
            status = 2
            _tell_usage(error)
        if ends:
            sys.exit(status)
        return status


class Command(TyperCommand):
    """A command whose help ends with lines that can be copied, which rich must not wrap."""

    def __init__(self, *given: Any, epilog: str | None = None, **options: Any) -> None:
        super().__init__(*given, **options)
        self.examples = (epilog or "").splitlines()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        formatter.write("\n".join(["Examples:", *(f"  {line}" for line in self.examples), ""]))


def _tell_usage(error: Any) -> None:
    """Print what click refuses, as one line: an option that does not exist, a value that is missing."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return  # the help was printed
    message = error.format_message()
    if possible := getattr(error, "possibilities", None):
        message = f"{error.message.rstrip('.')}. Did you mean {possible[0]}?"
    path = "st-reba" if context is None else context.command_path
    _tell(f"{message.rstrip('.')}{'' if message.endswith('?') else '.'} Help: {path} -h", path)


def _tell(message: str, path: str = "st-reba") -> None:
    # Messages of the libraries may be several lines long.
    print(f"{path}: {' '.join(message.split())}", file=sys.stderr)


def flowing(text: str) -> str:
    """Paragraphs without line breaks inside them."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def escaped(text: str) -> str:
    """Text that rich shows as it is: [text] is no markup."""
    return re.sub(r"\[(?=[a-zA-Z/#@])", r"\\[", text)


def group(help: str) -> typer.Typer:
    """A group without commands."""
    return typer.Typer(
        cls=Group,
        help=flowing(escaped(help)),
        context_settings=_CONTEXT,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )


app = group(
    """Any decoder-only language model as a text embedder, without training. Start with: st-reba demo

    Exit codes: 0 done; 1 the answer is no (verify found a difference, a task failed); 2 an error, or input that cannot
    be used; 130 interrupted by Ctrl-C."""
)


def command(
    to: typer.Typer,
    panel: str | None = None,
    *,
    interrupted: str = "nothing was written",
    names: Mapping[str, str] | None = None,
) -> Callable[[_F], _F]:
    """Make a function a command, with its docstring as help.

    A parameter whose type is a dataclass stands for the options that are its fields: several commands share them.

    Args:
        to: The group that gets it.
        panel: Heading in the group's help.
        interrupted: What is kept after Ctrl-C, and how to go on.
        names: Options by the names that errors use for them, where these are not the parameters' own.
    """

    def register(function: _F) -> _F:
        help, _, examples = cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
        to.command(
            function.__name__.replace("_", "-"),
            cls=Command,
            help=flowing(escaped(help)),
            epilog=cleandoc(examples),
            rich_help_panel=panel,
            context_settings=_CONTEXT,
        )(_flat(function, interrupted, names or {}))
        return function

    return register


def _flat(function: Callable[..., Any], interrupted: str, names: Mapping[str, str]) -> Callable[..., Any]:
    """The function with the fields of its dataclasses as parameters of their own, and with its errors told."""
    parameters: list[Parameter] = []
    shared: dict[str, Any] = {}
    hints = get_type_hints(function)
    for each in signature(function).parameters.values():
        kind = hints[each.name]
        if is_dataclass(kind):
            shared[each.name] = kind
            own, panel = get_type_hints(kind), getattr(kind, "panel", None)
            parameters += [_parameter(one.name, own[one.name], one.default, panel) for one in fields(kind)]
        else:
            parameters.append(_parameter(each.name, kind, each.default))
    flags = {each.name: _flag(each.name, each.default) for each in parameters} | dict(names)

    @wraps(function)
    def run(**given: Any) -> int:
        verbose, stderr = given.get("verbose", False), sys.stderr
        try:
            for name, kind in shared.items():
                given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
            return int(function(**given) or 0)
        except BrokenPipeError:
            # The reader, as `head`, has had enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt as error:
            _tell("; ".join(["interrupted", *(map(str, error.args) if error.args else [interrupted])]))
            return 130
        except Exception as error:
            if verbose:
                traceback.print_exc()
            known = isinstance(error, (OSError, ValueError, TypeError, ImportError))
            message = spoken(str(error), flags)
            _tell(message if known else f"{type(error).__name__}: {message} (--verbose shows more)")
            return 2
        finally:
            # What shows progress may have put its own in place.
            sys.stderr = stderr

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameter(name: str, kind: Any, about: Any, panel: str | None = None) -> Parameter:
    """A parameter as typer reads it: its help in the panel, and safe from rich."""
    about = copy(about)
    about.help = escaped(about.help or "")
    if not isinstance(about, type(typer.Argument())):
        about.rich_help_panel = about.rich_help_panel or panel
    if bool in alternatives(kind):
        about.metavar = ""
    if kind is bool and not about.param_decls:
        about.param_decls = (f"--{name.replace('_', '-')}",)  # and no --no-… beside it
    return Parameter(name, Parameter.KEYWORD_ONLY, default=about, annotation=kind)


def _flag(name: str, about: Any) -> str:
    """How messages call a parameter: its longest flag, or the name of an argument."""
    if isinstance(about, type(typer.Argument())):
        return str(about.metavar)
    flags = [each.partition("/")[0] for each in about.param_decls or ()]
    return max(flags, key=len, default=f"--{name.replace('_', '-')}")


def spoken(message: str, flags: Mapping[str, str]) -> str:
    """A message of the Python interface in the command line's words: ``--overwrite`` for ``overwrite=True``.

    Example:
        >>> spoken("there already; give overwrite=True (--overwrite), or k='all'", {"overwrite": "--overwrite"})
        "there already; give --overwrite, or k='all'"
    """

    def assigned(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in flags:
            return match[0]
        return flags[name] if value == "True" else f"{flags[name]} {value}"

    def beside(match: re.Match[str]) -> str:
        return match[2] if flags.get(match[1]) == match[2] else match[0]

    def named(match: re.Match[str]) -> str:
        told = match.string[: match.start()]
        return "" if all(re.search(rf"{flag}(?![\w-])", told) for flag in match[1].split(", ")) else match[0]

    return _FLAGS.sub(named, _BESIDE.sub(beside, _GIVEN.sub(assigned, _ASSIGNED.sub(assigned, message))))
