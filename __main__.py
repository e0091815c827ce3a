"""`python -m counterpoise`: the command line, where its script is not on the PATH."""

from .tools.cli import main  # type: ignore[import-not-found]  # taken for a script

if __name__ == "__main__":
    main()
