"""The checks of `holdfast doctor`."""
