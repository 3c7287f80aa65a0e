"""Holdfast's tables are not models. Django sends `post_migrate` only to applications that have this module."""
