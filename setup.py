"""Finds the packages: the root itself is `counterpoise`, which pyproject.toml cannot express."""

from setuptools import find_packages, setup

FOLDERS = ("balancer", "loader", "sched", "tools", "workers")

found = find_packages(include=[*FOLDERS, *(f"{folder}.*" for folder in FOLDERS)])
# setuptools leaves this file out of the wheel only if it is told the file's name
setup(
    packages=["counterpoise", *(f"counterpoise.{name}" for name in found)], script_name="setup.py"
)
