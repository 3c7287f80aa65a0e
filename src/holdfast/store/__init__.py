"""Where jobs live. `contract.py` is what every store promises; the folders beside it keep that promise."""
