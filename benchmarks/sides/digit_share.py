"""The reward of `step_vs_trl`: which share of an answer's characters are digits."""


def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
    """The share of digits, 0 for an empty answer."""
    return sum(character.isdigit() for character in solution_str) / max(len(solution_str), 1)
