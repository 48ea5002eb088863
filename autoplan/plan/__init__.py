"""The plan: its file format, and the checks that it makes sense."""

from autoplan.plan.schema import Plan, plan_schema

__all__ = ["Plan", "plan_schema"]
