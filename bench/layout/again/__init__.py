"""The layout that ships, its variants and bolder ones, measured in turn (docs/decisions/0009-layout-again.md)."""
