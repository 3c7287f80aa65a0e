"""What a Holdfast process serves over HTTP."""
