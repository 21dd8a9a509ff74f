"""The `palmette` command: finds the command asked for, turns every error a user can cause into one line."""

import sys
from typing import Annotated, Any

import typer

from palmette import __version__
from palmette.commands.doctor import doctor
from palmette.commands.evaluate import evaluate
from palmette.commands.grade import grade
from palmette.commands.mcp import mcp
from palmette.commands.models import models
from palmette.commands.plan import plan
from palmette.commands.plugins import plugins
from palmette.commands.report import report
from palmette.commands.rows import rows
from palmette.commands.search import search
from palmette.commands.serve import serve
from palmette.commands.simulate import simulate
from palmette.commands.sweep import demo, sweep
from palmette.commands.training.sft import sft
from palmette.commands.training.train import train
from palmette.commands.training.train_prm import train_prm
from palmette.commands.up import up
from palmette.errors import PalmetteError
from palmette.units import nearest, one_line

app = typer.Typer(
    help="Makes language models reason better in the memory you have.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    search, plan, simulate, up, sweep, demo, serve, train, sft, train_prm, evaluate, rows, report, models, plugins,
    grade, doctor, mcp,
):  # fmt: skip
    app.command()(command)

_OTHER_WORDS = {
    "model": "policy", "llm": "policy", "prm": "reward", "scorer": "reward", "verifier": "reward", "judge": "reward",
    "dataset": "task", "data": "task", "method": "strategy", "algorithm": "strategy", "n": "width", "beams": "width",
    "output": "out", "folder": "out", "gpus": "devices", "num-questions": "questions", "limit": "questions",
}  # fmt: skip
"""What other tools call our flags."""


_STOPPED = 130
_UsageError: type[Any] = typer.BadParameter.__bases__[0]
"""Wrong flags: click's own error, or that of the click which newer releases of typer carry inside."""


def main() -> None:
    """Run a command; every error a user can cause is one line on stderr with its exit code."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        code = app(arguments, standalone_mode=False)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except _UsageError as error:
        _fail(_usage(error), 2)
    except PalmetteError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped", _STOPPED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if debug:
            raise
        _fail(f"unexpected {type(error).__name__}: {error}. --debug shows where", 1)
    if code == _STOPPED:  # What newer releases of typer make of Ctrl-C.
        _fail("stopped", _STOPPED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print(f"palmette: {one_line(message)}", file=sys.stderr)
    sys.exit(code)


def _usage(error: Any) -> str:
    """Return what is wrong with the flags, with the flag that was most likely meant."""
    message = str(error.format_message()).rstrip(".")
    if type(error).__name__ == "NoArgsIsHelpError":
        return "name a command"
    if error.ctx is None or message.endswith("?"):
        return message
    if type(error).__name__ == "NoSuchOption":
        flags = [flag for parameter in error.ctx.command.params for flag in parameter.opts if flag.startswith("--")]
        given = error.option_name.lstrip("-")
        near = nearest(given, [flag[2:] for flag in flags])
        word = nearest(given, _OTHER_WORDS, least=0.8)
        meant = near or (_OTHER_WORDS[word] if word else None)
        message = f"no such option: {error.option_name}"
        if f"--{meant}" in flags:
            return f"{message}. Did you mean --{meant}?"
        key = _key_of(given.replace("-", "_"))
        if key is not None and "--set" in flags:
            return f"{message}. Did you mean --set {key}=VALUE?"
    return f"{message}. `{error.ctx.command_path} --help` lists what there is"


def _key_of(word: str) -> str | None:
    """Return the key of a config that somebody meant who wrote it as a flag."""
    from palmette.config import OTHER_WORDS, known_keys

    return next((key for key in known_keys() if key.rpartition(".")[2] == word), None) or OTHER_WORDS.get(word)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> Any:
    if version:
        print(f"palmette {__version__}")
        raise typer.Exit
