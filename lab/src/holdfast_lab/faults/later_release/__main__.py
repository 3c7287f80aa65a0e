"""`python -m holdfast_lab.faults.later_release migrate …`: the command `holdfast` of the later release."""

import os
import runpy
import sys

from holdfast_lab.faults.later_release import IN_LABORATORY, take_over

if __name__ == "__main__":
    if not os.environ.get(IN_LABORATORY):
        sys.exit("this is a release that does not exist, for `holdfast faults --cases R24`; use `holdfast` instead")
    take_over()
    runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
