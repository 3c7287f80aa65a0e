"""What runs in a peer's own interpreter. Nothing here imports Holdfast, except for Holdfast's own script."""
