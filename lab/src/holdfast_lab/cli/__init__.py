"""The commands that the laboratory adds to `holdfast`. They import the laboratory only when they run."""
