"""Running estimates of how many drafted tokens a round will keep. Pure arithmetic, no torch."""

from __future__ import annotations

from collections.abc import Sequence

HALF_LIFE_ROUNDS = 24.0  # how fast a sequence forgets: text changes kind within an answer
PRIOR_ROUNDS = 6.0  # how many rounds the engine-wide estimate counts for in a new sequence
DECAY = 0.5 ** (1 / HALF_LIFE_ROUNDS)
OPTIMISM = 0.75  # conditional acceptance assumed before anything was measured


class AcceptanceEstimate:
    """Decayed counts of trials and successes by draft position.

    Position j's conditional acceptance is P(draft j kept | drafts before it kept), so positions
    after the first rejection say nothing and are not counted. `prior`, the engine-wide estimate,
    fills in where this sequence has little to say.
    """

    __slots__ = ("_kept", "_prior", "_tried")

    def __init__(self, num_drafted: int, prior: AcceptanceEstimate | None = None) -> None:
        self._tried = [0.0] * num_drafted
        self._kept = [0.0] * num_drafted
        self._prior = prior

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Count one round that verified `num_drafted` drafts and kept `num_accepted`."""
        for position in range(min(num_drafted, len(self._tried))):
            if position > num_accepted:
                break
            self._tried[position] = self._tried[position] * DECAY + 1.0
            self._kept[position] = self._kept[position] * DECAY + (position < num_accepted)
        if self._prior is not None:
            self._prior.observe(num_drafted, num_accepted)

    def conditional(self, position: int) -> float:
        """Probability that the draft at `position` (0-based) is kept, given those before it are."""
        if self._prior is not None:
            expected = self._prior.conditional(position)
        else:
            expected = OPTIMISM if position == 0 else self.conditional(position - 1)
        kept = self._kept[position] + PRIOR_ROUNDS * expected
        return kept / (self._tried[position] + PRIOR_ROUNDS)

    def survival(self) -> list[float]:
        """Probability that draft j and all before it are kept, for every j: the gain of row j+1."""
        product = 1.0
        chain = []
        for position in range(len(self._tried)):
            product *= self.conditional(position)
            chain.append(product)
        return chain

    def expected_committed(self, num_drafted: int) -> float:
        """Expected tokens committed by a round that verifies `num_drafted` drafts."""
        return 1.0 + sum(self.survival()[:num_drafted])


def best_prefixes(survivals: Sequence[Sequence[float]], limits: Sequence[int]) -> list[tuple[float, int]]:
    """All (gain, sequence index) worth taking, best first.

    Gains within a sequence never rise with position, so taking them in this order always takes
    prefixes.
    """
    gains = [
        (gain, index)
        for index, (chain, limit) in enumerate(zip(survivals, limits, strict=True))
        for gain in chain[:limit]
    ]
    gains.sort(key=lambda entry: -entry[0])
    return gains
