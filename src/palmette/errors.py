"""The exception tree: every error a user can cause, with its exit code.

PalmetteError        1  anything else a user should read in one line
├── RunError         1  a run's own files: damaged, locked, unwritable, disk full
├── StoppedError   130  Ctrl-C, with how to go on
├── ConfigError      2  a setting, a flag, a task file or a folder named by one is wrong
├── BudgetError      3  what was asked does not fit the memory there is
└── BackendError     4  a model or a server cannot be loaded, reached or trusted
"""


class PalmetteError(Exception):
    """Base of all errors shown as one line. The message says what cannot be done and what to change."""

    exit_code = 1


class RunError(PalmetteError):
    """A run folder cannot be read, written or continued."""


class StoppedError(PalmetteError):
    """The user stopped the work; the message says how to continue it."""

    exit_code = 130


class ConfigError(PalmetteError):
    """A setting or an input file named by a setting is wrong."""

    exit_code = 2


class BudgetError(PalmetteError):
    """The work does not fit the memory budget."""

    exit_code = 3


class BackendError(PalmetteError):
    """A model or a server failed."""

    exit_code = 4
