"""Published training measurements, priced row by row: what `benchmarks/training_accuracy.py` is made of.

rows (a CSV) → assumptions (what a source ran, data) → models, clusters → pricing (`autoplan.estimate`) → statistics →
tables. Only `assumptions` knows sources by name, and only from `sources.yaml`.
"""
