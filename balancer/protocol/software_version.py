"""The version of counterpoise that is installed, as peers report it to each other."""

# pyproject.toml has the same one; `counterpoise.__version__` is this.
VERSION = "0.1.0"
