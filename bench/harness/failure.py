"""How a bench ends when it cannot go on."""


class BenchFailure(Exception):
    """What happened and what to do about it: printed, exit code 1."""


class UsageError(Exception):
    """The command line asks for what is not there: printed, exit code 2."""


class NotPossibleHere(BenchFailure):
    """The host does not allow it: printed, exit code 1; with --smoke 77, for a skipped test."""
