"""`python -m harness.cli`: the commands, without the console script."""

from harness.cli import main

if __name__ == "__main__":
    main()
