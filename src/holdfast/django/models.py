"""Holdfast's tables are no models. Django sends `post_migrate` only to applications that have this module."""
