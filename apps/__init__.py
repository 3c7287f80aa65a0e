"""Whole applications on Holdfast's public API. Each is a folder of its own that can be copied."""
