"""`python -m apps.passports worker|api|demo|verify|requeue|tenant|key`."""

import signal
import sys

if __name__ == "__main__":
    # Importing takes a second or two, in which Ctrl-C would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from apps.passports.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
