"""A lesson: some actions, a question, the actions that answer it, and the claims they demonstrate."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.sim.simulator.actions import Action
from millpond.sim.simulator.recording import Recording, recording_of

Steps = tuple[Action | int, ...]
"""Actions, and milliseconds to wait between them."""


@dataclass(frozen=True, slots=True)
class Lesson:
    name: str
    title: str
    about: str
    question: str
    answer: str
    claims: tuple[str, ...]
    before: Steps
    """Up to the question."""
    after: Steps
    """The answer."""
    nodes: int = 3
    seed: int = 1

    @property
    def tape(self) -> Recording:
        # An action at the same time as the question would run before it is asked.
        return recording_of((*self.before, 1, *self.after), seed=self.seed, nodes=self.nodes)

    @property
    def question_ms(self) -> int:
        """When the question is asked."""
        return sum(step for step in self.before if isinstance(step, int))
