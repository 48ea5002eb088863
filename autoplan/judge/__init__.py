"""A compiler as an outside judge: what XLA's SPMD partitioner makes of a plan's shardings, beside what was predicted.

`verify` compiles the planned layers on virtual CPU devices in a process of its own; JAX (the extra `jax`) is imported
there and nowhere else. XLA on CPU compiles for any number of devices without holding any data.
"""
