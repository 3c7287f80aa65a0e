"""`python -m holdfast.cli`, for where the command is not on the path."""

from holdfast.cli import main

if __name__ == "__main__":
    main()
