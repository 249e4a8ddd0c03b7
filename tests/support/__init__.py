"""Helpers shared by the Python tests, the parity tests and the benchmarks."""
