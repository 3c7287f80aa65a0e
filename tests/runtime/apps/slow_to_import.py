"""An app whose import takes longer than anybody waits."""

import os
import time
from pathlib import Path

from holdfast import Holdfast

app = Holdfast()

Path(os.environ["HOLDFAST_TEST_FOLDER"], "importing").touch()
time.sleep(60)
