"""The benchmarks: what writes benchmarks/, and the timings that no experiment makes."""
