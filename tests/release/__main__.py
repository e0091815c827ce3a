"""Try a wheel where nothing else is installed: `make dist` calls it with dist/*.whl.

Its dependencies come from where pip looks for them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.release.trial import new_environment, try_installed

if __name__ == "__main__":
    (wheel,) = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="counterpoise-release-") as folder:
        python = new_environment(Path(folder))
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
        subprocess.run([*command, str(wheel.resolve())], check=True, cwd=folder)
        try_installed(python, Path(folder))
    print(f"{wheel.name}: README's Python and `counterpoise demo` run where only it is installed")
