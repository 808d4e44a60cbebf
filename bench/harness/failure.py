"""The exceptions with which a bench ends early."""


class BenchFailure(Exception):
    """The bench failed. The message says why and what to do. Exit code 1."""


class UsageError(Exception):
    """The command line is not valid. Exit code 2."""


class NotPossibleHere(BenchFailure):
    """This host cannot run the bench. Exit code 1, or with --smoke 77 (a skipped test)."""
