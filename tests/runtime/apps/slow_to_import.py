"""An app whose import takes longer than any test waits."""

import os
import time
from pathlib import Path

from holdfast import Holdfast

app = Holdfast()

Path(os.environ["HOLDFAST_TEST_FOLDER"], "importing").touch()
# In many short sleeps: a signal just before a sleep begins is noticed only when that sleep is over.
for _ in range(600):
    time.sleep(0.1)
