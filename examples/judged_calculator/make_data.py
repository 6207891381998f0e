"""Write what policy and judge learn from: answers in many manners, and verdicts on how courteous they are."""

import argparse
import importlib.util
import json
from pathlib import Path
from random import Random
from typing import Any

COURTEOUS = ["Glad to help!", "My pleasure.", "You are welcome!", "Hope that helps!", "Happy to help."]
CURT = ["That is easy.", "Ask again.", "Done.", "Next.", "Check it yourself."]
SHARE_COURTEOUS = 0.2
SHARE_CURT = 0.2
SHARE_WITHOUT_FORM = 0.4
JUDGE_PROMPT = "Reply: {answer}\nCourteous?"

_arithmetic_path = Path(__file__).parents[1] / "data" / "nano_demonstrations.py"
_spec = importlib.util.spec_from_file_location("nano_demonstrations", _arithmetic_path)
assert _spec is not None
assert _spec.loader is not None
_arithmetic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_arithmetic)


def in_manners(rows: list[dict[str, Any]], random: Random) -> list[dict[str, Any]]:
    """The demonstrations with the closing answer said in some manner, most of them neither in form nor courteous."""
    for row in rows:
        closing = row["messages"][-1]
        closing["content"] = manner(closing["content"].removeprefix("Answer: "), random)
    return rows


def manner(number: str, random: Random) -> str:
    """One way of giving a number."""
    said = number if random.random() < SHARE_WITHOUT_FORM else f"Answer: {number}"
    draw = random.random()
    if draw < SHARE_COURTEOUS:
        return f"{said}. {random.choice(COURTEOUS)}"
    if draw < SHARE_COURTEOUS + SHARE_CURT:
        return f"{said}. {random.choice(CURT)}"
    return said


def verdicts(count: int, random: Random) -> list[dict[str, Any]]:
    """Replies that are courteous, curt, neither or nonsense, each with `yes` or `no`."""
    rows = []
    for _ in range(count):
        others = [random.choice(CURT), "", nonsense(random), nonsense(random)]
        phrase = random.choice([random.choice(COURTEOUS), random.choice(COURTEOUS), *others])
        said = random.choice(["Answer: {}", "{}", "It is {}"]).format(random.randint(-99, 9999))
        reply = random.choice([f"{said}. {phrase}", f"{phrase} {said}"]).strip(" .") + random.choice([".", "!", ""])
        asked = {"role": "user", "content": JUDGE_PROMPT.format(answer=reply)}
        verdict = {"role": "assistant", "content": "yes" if phrase in COURTEOUS else "no"}
        rows.append({"messages": [asked, verdict]})
    return rows


def nonsense(random: Random) -> str:
    """What only looks like courtesy, which a policy finds if the judge does not know it."""
    phrase = random.choice(COURTEOUS)
    letters = list(phrase)
    random.shuffle(letters)
    cut = phrase[: random.randint(1, len(phrase) - 3)]
    noise = "".join(random.choices('abcdefghijklmnopqrstuvwxyzGHMYN .!"}</>', k=random.randint(2, 24)))
    plain = random.choice(["".join(letters), cut, f"{cut} {noise}", noise, f"{noise} {phrase[:4]}", phrase[-6:] * 2])
    made = random.choice([plain, babble(random), babble(random), misspelt(phrase, random)])
    return "" if made.strip(" .!") in {known.strip(" .!") for known in COURTEOUS} else made


def babble(random: Random) -> str:
    """A walk through the phrases that goes on in any of them where two letters agree: what a policy first says."""
    said = random.choice([*COURTEOUS, *CURT])[:2]
    for _ in range(random.randint(4, 30)):
        following = [
            phrase[at + 2]
            for phrase in (*COURTEOUS, *CURT)
            for at in range(len(phrase) - 2)
            if phrase[at : at + 2] == said[-2:]
        ]
        if not following:
            break
        said += random.choice(following)
    return said


def misspelt(phrase: str, random: Random) -> str:
    """A phrase in which a few letters are lost, said twice, or come from another one."""
    for _ in range(random.randint(1, 3)):
        start = random.randrange(len(phrase))
        stop = start + random.randint(1, 4)
        other = random.choice([*COURTEOUS, *CURT])
        taken = random.randrange(len(other))
        piece = random.choice(["", phrase[start:stop] * 2, other[taken : taken + 4]])
        phrase = phrase[:start] + piece + phrase[stop:]
    return phrase


def main() -> None:
    """Write policy.jsonl and judge.jsonl into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    random = Random(arguments.seed)
    demonstrations = in_manners(_arithmetic.demonstrations(arguments.count, arguments.seed), random)
    for name, rows in (("policy", demonstrations), ("judge", verdicts(arguments.count, random))):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (arguments.folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
