"""Measures Holdfast against its promised speed: ratios within one run, as the median of interleaved pairs."""
