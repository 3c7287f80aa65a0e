"""Measures Holdfast against the speed that it promises: ratios within one run, the median of interleaved pairs."""
