"""Seeds that depend on what they are for and on nothing else: the same with 1 worker or 8, never shared in a group."""

import hashlib


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from the parts' text, such as run seed, uid, sample, role and turn (BLAKE2b)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
