"""Names that rewards may not report a value under, because runs write their own there."""

RESERVED_COMPONENTS = frozenset({"reward", "score", "input", "output", "gts", "step", "termination"})
"""`reward` is the score's own name in validation metrics; the others are fields of the dumps of samples."""
