"""Discrete-event replay of a plan: streams of stages, links between them, memory over time."""

from autoplan.simulate.pipeline import Pipeline, Send, Work
from autoplan.simulate.replay import Timeline, replay

__all__ = ["Pipeline", "Send", "Timeline", "Work", "replay"]
