"""One uniform number for each (request seed, output position): what makes sampling repeatable.

A sampled token is a pure function of the target's distribution at its position, the request's seed
and the position. It does not matter how many rows were verified together, so that at temperature > 0
speculation on gives the tokens of speculation off wherever the logits are equal. Integers only.
"""

from __future__ import annotations

import secrets

_WORD = (1 << 64) - 1
# Odd constant of the splitmix64 generator (Steele, Lea and Flood 2014): 2^64 / golden ratio.
_GAMMA = 0x9E3779B97F4A7C15
# Keep the streams of `uniform` and `derive` apart: any two different constants do.
_POSITION_STREAM = 0xD1B54A32D192ED03
_DERIVE_STREAM = 0x8CB92BA72F3D8DD7


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, fixed by `seed` (any integer) and `position` (≥ 0).

    `position` is the index of the output token: 0 for the first token after the prompt.
    """
    return (_mix2(seed, position, _POSITION_STREAM) >> 11) * 2.0**-53


def derive(seed: int, index: int) -> int:
    """The seed of the `index`-th of several sequences (n > 1) asked for under one seed; below 2^63."""
    return _mix2(seed, index, _DERIVE_STREAM) >> 1


def fresh_seed() -> int:
    """A seed for a request that names none, from the system's random source; below 2^63."""
    return secrets.randbits(63)


def _mix2(seed: int, index: int, stream: int) -> int:
    """Two rounds of the finaliser, so that neighbouring seeds and positions are unrelated."""
    inner = _mix((seed & _WORD) + _GAMMA ^ stream)
    return _mix(inner + (index + 1) * _GAMMA)


def _mix(word: int) -> int:
    """The splitmix64 finaliser: a bijection on 64-bit words in which every bit moves every other."""
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
