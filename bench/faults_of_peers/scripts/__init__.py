"""What runs in a peer's own interpreter. Nothing here imports Holdfast, but for Holdfast's own script."""
