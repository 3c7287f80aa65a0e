"""Where jobs live. `contract.py` says what every store promises; the packages next to it implement it."""
