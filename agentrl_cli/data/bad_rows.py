"""What becomes of rows that can't be used: refused, or left out, counted and named; never dropped in silence."""

from __future__ import annotations

from agentrl_cli.errors import DataError

_NUM_NAMED = 3
"""Bad rows that a warning names."""


class BadRows:
    """The rows of one source that can't be used."""

    def __init__(self, name: str, *, strict: bool) -> None:
        """Begin with none.

        Args:
            name: What messages call the source.
            strict: Refuse the first such row.
        """
        self.name = name
        self.num = 0
        self._strict = strict
        self._named: list[str] = []

    def add(self, error: DataError) -> None:
        """Count a row and remember why it can't be used.

        Raises:
            DataError: bad rows are refused.
        """
        if self._strict:
            hint = error.hint or "mend the row, or leave such rows out with data.strict=false"
            raise DataError(error.message, hint=hint) from error
        self.num += 1
        if len(self._named) < _NUM_NAMED:
            self._named.append(error.message)

    @property
    def first(self) -> str:
        """Why the first one can't be used; empty if there is none."""
        return self._named[0] if self._named else ""

    def warning(self, num_rows: int) -> str:
        """Return a sentence that counts and names them.

        Args:
            num_rows: All rows of the source, these included.
        """
        more = self.num - len(self._named)
        listed = "; ".join(self._named) + (f"; and {more} more" if more else "")
        return f"{self.name}: left out {self.num} of {num_rows} rows that can't be used: {listed}"
