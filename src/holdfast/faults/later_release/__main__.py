"""`python -m holdfast.faults.later_release migrate …`: the command `holdfast` of the later release."""

import runpy

from holdfast.faults.later_release import take_over

if __name__ == "__main__":
    take_over()
    runpy.run_module("holdfast.cli", run_name="__main__", alter_sys=True)
