"""The exception hierarchy: every error a user can cause, with its exit code.

PalmetteError        1  any other error that is shown as one line
├── RunError         1  a run's files are damaged, locked or cannot be written
├── StoppedError   130  Ctrl-C; the message says how to continue
├── ConfigError      2  a setting, a flag, or a file or folder that one of them names is wrong
├── BudgetError      3  the work does not fit into the memory
└── BackendError     4  a model or a server cannot be loaded or reached, or returned wrong values
"""


class PalmetteError(Exception):
    """Base class of all errors that are shown as one line. The message says what cannot be done and what to change."""

    exit_code = 1


class RunError(PalmetteError):
    """A run folder cannot be read, written or continued."""


class StoppedError(PalmetteError):
    """The user stopped the work; the message says how to continue it."""

    exit_code = 130


class ConfigError(PalmetteError):
    """A setting, a flag, or a file or folder that one of them names is wrong."""

    exit_code = 2


class BudgetError(PalmetteError):
    """The work does not fit into the memory of the device, or into the budget set for it."""

    exit_code = 3


class BackendError(PalmetteError):
    """A model or a server cannot be loaded or reached, or returned wrong values."""

    exit_code = 4
