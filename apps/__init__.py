"""Complete applications built on Holdfast's public API. Each is one folder that you can copy."""
