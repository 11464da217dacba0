"""`python -m msgworker`: the command line."""

from msgworker.cli import main

if __name__ == "__main__":
    main(prog_name="msgworker")
