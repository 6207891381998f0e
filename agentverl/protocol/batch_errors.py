"""What is wrong with a batch; AssertionError and KeyError too, because code written for verl catches those."""

from agentverl.errors import BadInputError


class BatchError(BadInputError, AssertionError):
    """Columns that do not fit each other, or an operation that does not fit the batch."""


class MissingColumnError(BatchError, KeyError):
    """A column that the batch does not have."""

    def __str__(self) -> str:  # KeyError would show the quoted repr of the message
        return str(self.args[0])
