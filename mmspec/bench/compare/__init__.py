"""The contenders of benchmarks."""
