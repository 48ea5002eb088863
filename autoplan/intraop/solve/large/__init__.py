"""The solver of large instances: exact reductions, then a MILP or a priced search of the core that is left."""
